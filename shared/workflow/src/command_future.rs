use std::{
    sync::Arc,
    task::{Poll, Waker},
};

use ledgerline_engine::{CommandHandle, Engine};

use crate::Error;

/// The common part of the futures of waits and hooks: the first poll issues the command, later polls wait for the log.
pub(crate) enum CommandFuture {
    NotIssued(Arc<Engine>),
    Issued(CommandHandle),
    /// The future has returned.
    Returned,
}

impl CommandFuture {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self::NotIssued(Arc::clone(engine))
    }

    /// Issues the command at the first call; later calls do nothing.
    pub(crate) fn issue(
        &mut self,
        issue: impl FnOnce(&Arc<Engine>) -> Result<CommandHandle, Error>,
    ) -> Result<(), Error> {
        if let Self::NotIssued(engine) = self {
            let engine = Arc::clone(engine);
            // After an error the future stays `Returned`: polling it again never completes.
            *self = Self::Returned;
            *self = Self::Issued(issue(&engine)?);
        }
        Ok(())
    }

    /// What `poll` of the handle says, without an end of the future.
    pub(crate) fn watch<R>(
        &self,
        waker: &Waker,
        poll: impl FnOnce(&CommandHandle, &Waker) -> Poll<R>,
    ) -> Poll<R> {
        match self {
            Self::Issued(handle) => poll(handle, waker),
            Self::NotIssued(_) | Self::Returned => Poll::Pending,
        }
    }

    /// What `poll` of the handle says; when it is ready the future has returned, and the caller gets the handle.
    pub(crate) fn poll<R>(
        &mut self,
        waker: &Waker,
        poll: impl FnOnce(&CommandHandle, &Waker) -> Poll<R>,
    ) -> Poll<(R, CommandHandle)> {
        let Poll::Ready(result) = self.watch(waker, poll) else { return Poll::Pending };
        match std::mem::replace(self, Self::Returned) {
            Self::Issued(handle) => Poll::Ready((result, handle)),
            Self::NotIssued(_) | Self::Returned => Poll::Pending,
        }
    }
}
