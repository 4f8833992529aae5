//! SIGTERM and SIGINT: the first asks for an orderly end, the second ends at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::failure::Failure;
use super::output;

/// Tells when the process was asked to end.
#[derive(Debug, Clone)]
pub(super) struct Signals(watch::Receiver<Option<&'static str>>);

impl Signals {
    /// Takes the signals over from the system's default, which is to end at once.
    pub(super) fn take() -> Result<Self, Failure> {
        let refused = |error| Failure::failed(format!("cannot watch for signals: {error}"));
        let terminate = signal(SignalKind::terminate()).map_err(refused)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(refused)?;
        let (tell, told) = watch::channel(None);
        tokio::spawn(watch_both(terminate, interrupt, tell));
        Ok(Self(told))
    }

    /// Waits for the first signal and names it. Cancel safe.
    pub(super) async fn first(&mut self) -> &'static str {
        match self.0.wait_for(Option::is_some).await {
            Ok(name) => name.unwrap_or_default(),
            // The watching task ends only with the process.
            Err(_) => std::future::pending().await,
        }
    }
}

async fn watch_both(
    mut terminate: Signal,
    mut interrupt: Signal,
    tell: watch::Sender<Option<&'static str>>,
) {
    let name = next(&mut terminate, &mut interrupt).await;
    // Whoever asks later is told as well: the value stays.
    let _ = tell.send(Some(name));
    let name = next(&mut terminate, &mut interrupt).await;
    output::say(format_args!(
        "{name} again: ending at once; what was in flight is delivered again after the lease"
    ));
    std::process::exit(1);
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
