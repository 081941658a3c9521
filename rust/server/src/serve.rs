//! Life of a server: listening, draining, the watchdog.
//!
//! Phases: *serving* until somebody asks to stop or the engine fails; then nothing new is taken and open requests get
//! `--drain-timeout`; then they are aborted and get [`FLUSH`] to write their last event. A second request to stop
//! skips the waiting. After a failure the server answers 503 for [`LINGER`], so that probes and clients see why; if the
//! model could not be loaded, it ends at once.

use std::io;
use std::num::NonZero;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use frizzen_core::Error;
use frizzen_engine::Health;
use frizzen_engine::watchdog::Watchdog;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

use crate::config::HttpArgs;
use crate::connections;
use crate::edge;
use crate::routes;
use crate::shutdown::ShutdownRequests;
use crate::state::SharedState;
use crate::traces::Tracer;

/// How often the engine is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long a failed server goes on answering, at most.
const LINGER: Duration = Duration::from_secs(5);
/// How long aborted requests may take to write their last event.
const FLUSH: Duration = Duration::from_secs(2);
/// Threads for tokenising long prompts and the like: more would only take the engine's processor.
const MAX_BLOCKING_THREADS: usize = 8;
/// Most threads for connections.
const MAX_WORKER_THREADS: usize = 4;
/// Processors for each of them.
const PROCESSORS_PER_WORKER: usize = 4;
const WORKER_THREADS_VARIABLE: &str = "TOKIO_WORKER_THREADS";

pub use crate::connections::{Listener, bind};

/// How a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Asked to, and every request was answered or aborted. The engine's loop was told to end.
    Stopped,
    /// The engine failed with this error; its loop has ended or is about to.
    Failed(Error),
    /// A step never ended. The engine's thread cannot be joined: the process must end without it.
    Stuck(Error),
}

impl Outcome {
    /// The exit code of a process that has nothing else to do.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Stopped => 0,
            Self::Failed(_) | Self::Stuck(_) => 1,
        }
    }
}

/// A runtime for [`serve`]. `TOKIO_WORKER_THREADS` overrides the number of its threads.
pub fn runtime() -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if std::env::var_os(WORKER_THREADS_VARIABLE).is_none() {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        builder.worker_threads(worker_threads(processors));
    }
    builder.enable_all().max_blocking_threads(MAX_BLOCKING_THREADS).thread_name("http").build()
}

/// One thread writes over 100,000 tokens a second. With a second one, every step wakes both, and each takes streams
/// from the other and their state from its cache: a quarter more CPU per token on two processors.
fn worker_threads(processors: usize) -> usize {
    (processors / PROCESSORS_PER_WORKER).clamp(1, MAX_WORKER_THREADS)
}

/// Runs what blocks for a while, and lets the runtime of this thread, if there is one, go on with everything else.
pub fn runtime_goes_on<R>(work: impl FnOnce() -> R) -> R {
    tokio::task::block_in_place(work)
}

/// The whole HTTP service.
pub fn router(state: &SharedState) -> Router {
    let router = routes::router().layer(axum::middleware::from_fn_with_state(state.clone(), edge::edge));
    let router = match cors(&state.http) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.with_state(state.clone())
}

fn cors(http: &HttpArgs) -> Option<CorsLayer> {
    let origins: Vec<HeaderValue> =
        http.allowed_origins.iter().filter_map(|origin| origin.parse().ok()).collect();
    let allows_all = origins.iter().any(|origin| origin == "*");
    let credentials = http.allow_credentials;
    // Browsers take no asterisk beside credentials: there, what they ask for is repeated.
    let allowed = match origins.as_slice() {
        [] => return None,
        _ if allows_all => AllowOrigin::any(),
        _ => AllowOrigin::list(origins),
    };
    let methods = match http.allowed_methods.as_slice() {
        [] if credentials => AllowMethods::mirror_request(),
        [] => AllowMethods::any(),
        methods => AllowMethods::list(methods.iter().cloned()),
    };
    let headers = match http.allowed_headers.as_slice() {
        [] if credentials => AllowHeaders::mirror_request(),
        [] => AllowHeaders::any(),
        headers => AllowHeaders::list(headers.iter().cloned()),
    };
    if credentials && allows_all {
        tracing::warn!(
            "--allow-credentials has no effect beside --allowed-origins '*': browsers refuse both together"
        );
    }
    let layer = CorsLayer::new().allow_origin(allowed).allow_methods(methods).allow_headers(headers);
    Some(layer.allow_credentials(credentials && !allows_all))
}

/// Serves until asked to stop or until the engine fails. The listener is bound by the caller, so that `/health` can
/// say what is being loaded from the first moment on.
pub async fn serve(
    listener: impl Into<Listener>,
    state: SharedState,
    mut requests: ShutdownRequests,
) -> io::Result<Outcome> {
    let listener = listener.into();
    let (stop, stopped) = oneshot::channel::<()>();
    let (ended, closed) = oneshot::channel::<()>();
    let (flush, flushing) = oneshot::channel::<()>();
    let mut exporting = JoinSet::new();
    if let Some(exporter) = state.tracer.as_ref().and_then(Tracer::exporter) {
        exporting.spawn(exporter.run(async {
            let _ = flushing.await;
        }));
    }
    let mut server = pin!(async {
        let stopping = async {
            // A dropped sender means the same as a message.
            let _ = stopped.await;
        };
        connections::serve(listener, router(&state), &state.http, stopping).await;
        drop(ended);
    });
    let mut control = pin!(async {
        let outcome = live(&state, &mut requests, stop, closed).await;
        // A failure between two looks at the engine is still a failure.
        let outcome = match state.engine.health() {
            Health::Failed(error) if outcome == Outcome::Stopped => Outcome::Failed(error),
            _ => outcome,
        };
        state.engine.shutdown();
        outcome
    });
    let outcome = tokio::select! {
        outcome = &mut control => {
            // Whoever does not read its last event by then will not.
            let _ = timeout(FLUSH, server).await;
            outcome
        }
        () = &mut server => control.await,
    };
    drop(flush);
    // A collector that is slow now costs the last traces.
    let _ = timeout(FLUSH, exporting.join_next()).await;
    Ok(outcome)
}

/// The phases of a server, up to the point where what is still open must be aborted. Dropping `stop` ends listening;
/// `closed` ends when every connection has.
async fn live(
    state: &SharedState,
    requests: &mut ShutdownRequests,
    stop: oneshot::Sender<()>,
    closed: oneshot::Receiver<()>,
) -> Outcome {
    let failed = tokio::select! {
        outcome = failure(state) => Some(outcome),
        () = requests.next() => None,
    };
    if let Some(outcome) = failed {
        // Goes on answering for a while, so that whoever asks learns why. A model that was never loaded has nobody
        // who would ask, and somebody at a terminal who waits for the prompt.
        if state.engine.info().is_some() {
            tokio::select! {
                () = sleep(LINGER.min(state.http.drain_timeout)) => {}
                () = requests.next() => {}
            }
        }
        drop(stop);
        return outcome;
    }
    let open = state.engine.open_streams();
    tracing::info!(
        open,
        timeout_s = state.http.drain_timeout.as_secs(),
        "draining; a second signal ends at once"
    );
    state.engine.drain();
    drop(stop);
    tokio::select! {
        _ = closed => Outcome::Stopped,
        () = sleep(state.http.drain_timeout) => {
            tracing::warn!(open = state.engine.open_streams(), "the drain timeout is over: open requests are aborted");
            Outcome::Stopped
        }
        () = requests.next() => Outcome::Stopped,
        outcome = failure(state) => outcome,
    }
}

/// Waits until the engine fails, and makes it fail when a step takes too long.
async fn failure(state: &SharedState) -> Outcome {
    let mut watchdog = Watchdog::new(state.http.step_timeout);
    loop {
        sleep(TICK).await;
        if let Health::Failed(error) = state.engine.health() {
            return Outcome::Failed(error);
        }
        let Some(stall) = watchdog.look(&state.engine) else { continue };
        let (engine, seen) = (state.engine.clone(), stall.clone());
        // A report that panics must not keep the engine from failing.
        let _ = tokio::task::spawn_blocking(move || seen.report(&engine)).await;
        if stall.is_final() {
            let error = stall.error();
            state.engine.fail(error.clone());
            return Outcome::Stuck(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::worker_threads;

    #[test]
    fn connections_get_one_thread_for_four_processors_and_four_at_most() {
        let threads = [1, 2, 7, 8, 16, 128].map(worker_threads);
        assert_eq!(threads, [1, 1, 1, 2, 4, 4]);
    }
}
