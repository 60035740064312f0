//! Hooks: points of a run that receive payloads from outside.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use ledgerline_engine::{CommandHandle, Engine};
use ledgerline_runs::check_chosen_token;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Error, command_future::CommandFuture, json};

/// A hook that is to be created: see [`Ctx::hook`][crate::Ctx::hook].
#[must_use = "a hook is not created unless it is awaited"]
pub struct NewHook {
    command: CommandFuture,
    token: Option<String>,
    metadata: Result<Option<Value>, Error>,
}

impl NewHook {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self { command: CommandFuture::new(engine), token: None, metadata: Ok(None) }
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
        let Self { command, token, metadata } = self.get_mut();
        command.issue(|engine| {
            let token = token.take();
            if let Some(token) = &token {
                check_chosen_token("token", token).map_err(|invalid| json::bad_input(&invalid))?;
            }
            let metadata = std::mem::replace(metadata, Ok(None))?;
            engine.issue_hook(token, metadata)
        })?;
        let created = command.poll(cx.waker(), CommandHandle::poll_hook_created);
        created.map(|(token, handle)| Ok(Hook { token: token?, handle }))
    }
}

/// A point of a run that receives payloads until it is disposed of or dropped.
#[must_use = "a hook that is dropped receives nothing"]
pub struct Hook {
    token: String,
    handle: CommandHandle,
}

impl Hook {
    /// Every sender that knows the token may send payloads.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The next payload, in the order of arrival. A payload that is no `T` is an error that names the field; the next
    /// call gives the payload after it.
    pub fn next<T: DeserializeOwned>(&self) -> Next<'_, T> {
        Next { hook: self, reader: None, payload: PhantomData }
    }

    /// Disposes of the hook: once the returned future is ready, the hook takes no more payloads.
    pub fn dispose(self) -> Dispose {
        Dispose { state: Disposing::NotAsked(self.handle) }
    }
}

/// The next payload of a hook: see [`Hook::next`].
#[must_use = "no payload is received unless this is awaited"]
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
        handle.poll_payload(reader, cx.waker()).map(|payload| match payload? {
            Some(payload) => json::read("payload", payload),
            None => Err(Error::fatal("the hook was disposed of").code("hook_disposed")),
        })
    }
}

impl<T> Drop for Next<'_, T> {
    fn drop(&mut self) {
        if let Some(reader) = self.reader {
            self.hook.handle.stop_reading(reader);
        }
    }
}

/// The end of a hook: see [`Hook::dispose`].
#[must_use = "a hook stays unless this is awaited or dropped"]
pub struct Dispose {
    state: Disposing,
}

enum Disposing {
    NotAsked(CommandHandle),
    Asked(CommandHandle),
    Returned,
}

impl Future for Dispose {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let state = &mut self.get_mut().state;
        if let Disposing::NotAsked(handle) = state {
            handle.dispose_hook()?;
        }
        let (Disposing::NotAsked(handle) | Disposing::Asked(handle)) =
            std::mem::replace(state, Disposing::Returned)
        else {
            return Poll::Pending;
        };
        match handle.poll_hook_disposed(cx.waker()) {
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
