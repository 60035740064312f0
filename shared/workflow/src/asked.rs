use std::{
    sync::Arc,
    task::{Poll, Waker},
};

use crate::{
    Error,
    engine::{Engine, Handle, command::Entity},
};

/// What the futures of waits and hooks have in common: asking for something when they are first polled,
/// then waiting for the log.
pub(crate) enum Asked {
    /// Not polled yet.
    Not(Arc<Engine>),
    Waiting(Handle),
    /// It has returned.
    Over,
}

impl Asked {
    pub(crate) fn not_yet(engine: &Arc<Engine>) -> Self {
        Self::Not(Arc::clone(engine))
    }

    /// Issues the command for `entity` at the first poll; later calls do nothing.
    pub(crate) fn ask(&mut self, entity: impl FnOnce() -> Result<Entity, Error>) -> Result<(), Error> {
        if let Self::Not(engine) = self {
            let engine = Arc::clone(engine);
            // If this fails, the future stays `Over`: polling it again never completes.
            *self = Self::Over;
            *self = Self::Waiting(Handle::issue(&engine, entity()?)?);
        }
        Ok(())
    }

    /// What `look` finds when the log has brought it.
    pub(crate) fn watch<R>(&self, waker: &Waker, look: impl FnOnce(&mut Entity) -> Option<R>) -> Poll<R> {
        match self {
            Self::Waiting(handle) => handle.engine.poll(handle.slot, waker, look),
            Self::Not(_) | Self::Over => Poll::Pending,
        }
    }

    /// What `take` finds when the log has brought it, and the place of what was asked for.
    pub(crate) fn poll<R>(
        &mut self,
        waker: &Waker,
        take: impl FnOnce(&mut Entity) -> Option<R>,
    ) -> Poll<(R, Handle)> {
        let Self::Waiting(handle) = self else { return Poll::Pending };
        let Poll::Ready(result) = handle.engine.poll(handle.slot, waker, take) else { return Poll::Pending };
        match std::mem::replace(self, Self::Over) {
            Self::Waiting(handle) => Poll::Ready((result, handle)),
            Self::Not(_) | Self::Over => Poll::Pending,
        }
    }
}
