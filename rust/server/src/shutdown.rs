//! Requests to stop: the first one drains, the second one ends at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Where requests to stop come from.
#[derive(Debug)]
pub enum ShutdownRequests {
    /// SIGTERM and SIGINT of this process.
    Signals {
        /// What a supervisor sends.
        terminate: Signal,
        /// What a terminal sends.
        interrupt: Signal,
    },
    /// Another part of this process.
    Channel(UnboundedReceiver<()>),
}

impl ShutdownRequests {
    /// Listens to the process's signals from now on; they no longer end it. Needs a tokio runtime.
    pub fn from_signals() -> io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self::Signals { terminate, interrupt })
    }

    /// A sender whose every message is a request.
    pub fn channel() -> (UnboundedSender<()>, Self) {
        let (sender, receiver) = unbounded_channel();
        (sender, Self::Channel(receiver))
    }

    /// Waits for the next request.
    pub async fn next(&mut self) {
        match self {
            Self::Signals { terminate, interrupt } => {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            }
            Self::Channel(receiver) => {
                // A sender that is gone can ask for nothing.
                if receiver.recv().await.is_none() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}
