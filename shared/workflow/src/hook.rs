//! Points of a run that receive data from outside.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use ledgerline_dispatch::check_chosen_token;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Error,
    asked::Asked,
    engine::{Engine, Handle, command::Entity, hook::HookRecord},
    json,
};

/// A hook to be: see [`Ctx::hook`][crate::Ctx::hook].
#[must_use = "a hook is not there unless it is awaited"]
pub struct NewHook {
    asked: Asked,
    token: Option<String>,
    metadata: Result<Option<Value>, Error>,
}

impl NewHook {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self { asked: Asked::not_yet(engine), token: None, metadata: Ok(None) }
    }

    /// Sets a token that the workflow chooses; its senders need an API key of the tenant. Without this call the
    /// hook gets a token that cannot be guessed, and every sender that knows the token may send payloads.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the data that users see with the hook.
    pub fn metadata(mut self, metadata: impl Serialize) -> Self {
        self.metadata = json::write("metadata", &metadata).map(Some);
        self
    }
}

impl Future for NewHook {
    type Output = Result<Hook, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { asked, token, metadata } = self.get_mut();
        asked.ask(|| {
            let token = token.take();
            if let Some(token) = &token {
                check_chosen_token("token", token).map_err(|invalid| Error::invalid(&invalid))?;
            }
            let metadata = std::mem::replace(metadata, Ok(None))?;
            Ok(Entity::Hook(HookRecord::new(token, metadata)))
        })?;
        let created = |entity: &mut Entity| match entity {
            Entity::Hook(hook) => hook.created(),
            Entity::Step(_) | Entity::Wait(_) => None,
        };
        asked.poll(cx.waker(), created).map(|(token, handle)| Ok(Hook { token: token?, handle }))
    }
}

/// A point of a run that receives payloads until it is disposed of or dropped.
#[must_use = "a hook that is dropped receives nothing"]
pub struct Hook {
    token: String,
    handle: Handle,
}

impl Hook {
    /// Who knows it may send payloads.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The next payload, in the order in which they came. One that is no `T` is an error that names the
    /// field, and is gone.
    pub fn next<T: DeserializeOwned>(&self) -> Next<'_, T> {
        Next { hook: self, reader: None, payload: PhantomData }
    }

    /// Takes no more payloads, from when this has returned on.
    pub fn dispose(self) -> Dispose {
        Dispose { state: Disposing::Not(self.handle) }
    }
}

/// The next payload of a hook: see [`Hook::next`].
#[must_use = "nothing is received unless it is awaited"]
pub struct Next<'h, T> {
    hook: &'h Hook,
    /// The number of the reader, while it waits.
    reader: Option<u64>,
    payload: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Future for Next<'_, T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { hook: Hook { handle, .. }, reader, .. } = self.get_mut();
        handle.engine.read_hook(handle.slot, reader, cx.waker()).map(|payload| match payload? {
            Some(payload) => json::read("payload", payload),
            None => Err(Error::fatal("the hook was disposed of").code("hook_disposed")),
        })
    }
}

impl<T> Drop for Next<'_, T> {
    fn drop(&mut self) {
        if let Some(reader) = self.reader {
            self.hook.handle.engine.stop_reading(self.hook.handle.slot, reader);
        }
    }
}

/// The end of a hook: see [`Hook::dispose`].
#[must_use = "a hook stays unless this is awaited or dropped"]
pub struct Dispose {
    state: Disposing,
}

enum Disposing {
    Not(Handle),
    Asked(Handle),
    Over,
}

impl Future for Dispose {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let state = &mut self.get_mut().state;
        if let Disposing::Not(handle) = state {
            handle.engine.check_place()?;
            handle.engine.abandon(handle.slot);
        }
        let disposed = |entity: &mut Entity| match entity {
            Entity::Hook(hook) => hook.is_disposed().then_some(()),
            Entity::Step(_) | Entity::Wait(_) => None,
        };
        let (Disposing::Not(handle) | Disposing::Asked(handle)) = std::mem::replace(state, Disposing::Over)
        else {
            return Poll::Pending;
        };
        match handle.engine.poll(handle.slot, cx.waker(), disposed) {
            Poll::Pending => {
                *state = Disposing::Asked(handle);
                Poll::Pending
            }
            Poll::Ready(()) => {
                handle.done();
                Poll::Ready(Ok(()))
            }
        }
    }
}
