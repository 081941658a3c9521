//! Listening, and the connections that come of it.
//!
//! Invariants: a client that does not end its handshake, or send its request's head, in time is dropped; nothing but running
//! out of descriptors stops accepting, and that only for a moment; when asked to stop, connections end after the answer they
//! are in.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream, lookup_host};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;
use tower_service::Service as _;

use crate::config::HttpArgs;
use crate::tls::Tls;

/// Connections that may wait to be accepted: a burst of thousands must not be refused by the kernel.
const BACKLOG: u32 = 4096;
/// Most bytes of a request's head.
const MAX_HEAD: usize = 64 << 10;
/// How long accepting rests when there is no descriptor left for another connection.
const REST: Duration = Duration::from_millis(50);

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A port that speaks TLS.
    Tls(TcpListener, Arc<Tls>),
    /// A socket in the file system.
    Unix(UnixListener, SocketFile),
}

/// The file of a socket, which is removed with its listener.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Where it can be reached.
    ///
    /// # Errors
    /// The port cannot be asked for.
    pub fn url(&self) -> io::Result<String> {
        match self {
            Self::Tcp(listener) => Ok(format!("http://{}", listener.local_addr()?)),
            Self::Tls(listener, _) => Ok(format!("https://{}", listener.local_addr()?)),
            Self::Unix(_, SocketFile(path)) => Ok(format!("unix:{}", path.display())),
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

/// Listens, and says where. Raises the number of descriptors that the process may have first: each stream is one.
///
/// # Errors
/// Names the address that could not be taken, or the file of a certificate that cannot be used.
pub async fn bind(http: &HttpArgs) -> io::Result<Listener> {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => tracing::debug!(limit, "file descriptors"),
        Err(error) => tracing::warn!(%error, "the limit of file descriptors stays as it is"),
    }
    if let Some(path) = &http.uds {
        return listen_at(path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on {}: {error}", path.display()))
        });
    }
    let tls = Tls::load(&http.tls)
        .map_err(|message| io::Error::new(io::ErrorKind::InvalidInput, message))?
        .map(Arc::new);
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot listen on {}:{}: {error}", http.host, http.port))
    };
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in lookup_host((http.host.as_str(), http.port)).await.map_err(named)? {
        match listen(address) {
            Ok(listener) => {
                return announced(match tls {
                    Some(tls) => Listener::Tls(listener, tls),
                    None => listener.into(),
                });
            }
            Err(error) => last = error,
        }
    }
    Err(named(last))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that is started again must not wait for the connections of the one before it.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Listens at a path. A socket that nobody listens at any more is left from a server that was killed.
fn listen_at(path: &Path) -> io::Result<Listener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    announced(Listener::Unix(listener, SocketFile(path.to_owned())))
}

fn announced(listener: Listener) -> io::Result<Listener> {
    let url = listener.url()?;
    tracing::info!(%url, "listening");
    Ok(listener)
}

/// Serves every connection until `stopping` is over and all of them have ended.
pub async fn serve(
    listener: Listener,
    router: Router,
    options: &HttpArgs,
    stopping: impl Future<Output = ()>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).max_buf_size(MAX_HEAD);
    // An event is a few hundred bytes: copying it beside its frame costs less than a vectored write of three parts.
    http.writev(false);
    let header_timeout = options.header_timeout;
    let prefix: Arc<str> = options.root_path.as_str().into();
    http.header_read_timeout((!header_timeout.is_zero()).then_some(header_timeout));
    let tls = match &listener {
        Listener::Tls(_, tls) => Some(Arc::clone(tls)),
        Listener::Tcp(_) | Listener::Unix(..) => None,
    };
    let mut refreshing = pin!(async {
        match &tls {
            Some(tls) => tls.refresh().await,
            None => pending().await,
        }
    });
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut stopping = pin!(stopping);
    loop {
        tokio::select! {
            () = &mut stopping => break,
            stream = accept(&listener) => {
                let (router, prefix) = (router.clone(), Arc::clone(&prefix));
                let service = service_fn(move |request| answer(router.clone(), &prefix, request));
                let stopped = stopped.clone();
                match (&tls, stream) {
                    // A future of its own: what a handshake needs must not make every other connection larger.
                    (Some(tls), ByteStream::Tcp(stream)) => {
                        let (tls, http) = (Arc::clone(tls), http.clone());
                        connections.spawn(async move {
                            let Some(stream) = shaken(&tls, stream, header_timeout, stopped.clone()).await else {
                                return;
                            };
                            drive(http.serve_connection(TokioIo::new(stream), service), stopped).await;
                        });
                    }
                    (_, stream) => {
                        connections.spawn(drive(http.serve_connection(TokioIo::new(stream), service), stopped));
                    }
                }
            }
            () = &mut refreshing => {}
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    // There may be no connection to tell.
    let _ = stop.send(());
    while connections.join_next().await.is_some() {}
}

/// The connection behind a handshake; `None` if there is nobody to serve, or no time left.
async fn shaken(
    tls: &Tls,
    stream: TcpStream,
    limit: Duration,
    mut stopped: watch::Receiver<()>,
) -> Option<ByteStream> {
    let limit = async { if limit.is_zero() { pending().await } else { sleep(limit).await } };
    tokio::select! {
        shaken = tls.handshake(stream) => match shaken {
            Ok(stream) => Some(ByteStream::Tls(Box::new(stream))),
            Err(error) => {
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
        },
        // A request that has not begun is not waited for.
        _ = stopped.changed() => None,
        () = limit => None,
    }
}

/// Serves one connection; asks it to end after the answer it is in once `stopped` changes.
async fn drive<S>(connection: http1::Connection<TokioIo<ByteStream>, S>, stopped: watch::Receiver<()>)
where
    S: HttpService<Incoming, ResBody = Body, Error = Infallible>,
{
    let mut connection = pin!(connection);
    let mut told = false;
    let mut change = stopped.clone();
    let mut change = pin!(change.changed());
    let mut waiting = false;
    let ended = poll_fn(|context| {
        // The wait has the waker of this task from its first poll on. To poll it for every event would take a lock that
        // all connections share.
        if !std::mem::replace(&mut waiting, true) {
            let _ = change.as_mut().poll(context);
        }
        if !told && stopped.has_changed().unwrap_or(true) {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    });
    if let Err(error) = ended.await {
        // The client left, or sent what is not HTTP: its own affair.
        tracing::trace!(%error, "a connection ended");
    }
}

fn answer(
    mut router: Router,
    prefix: &str,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + use<> {
    // A proxy may take the prefix off, or leave it on.
    if !prefix.is_empty()
        && let Some(uri) = without_prefix(request.uri(), prefix)
    {
        *request.uri_mut() = uri;
    }
    router.call(request.map(Body::new))
}

/// The URI behind a prefix of its path; `None` if it has another path.
fn without_prefix(uri: &Uri, prefix: &str) -> Option<Uri> {
    let rest = uri.path().strip_prefix(prefix)?;
    let path = match rest {
        "" => "/",
        _ if rest.starts_with('/') => rest,
        _ => return None,
    };
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    format!("{path}{query}").parse().ok()
}

/// The next connection.
async fn accept(listener: &Listener) -> ByteStream {
    loop {
        let accepted = match listener {
            Listener::Tcp(listener) | Listener::Tls(listener, _) => {
                listener.accept().await.map(|(stream, _)| {
                    // Small events must not wait for the acknowledgement of the ones before them. A connection that is gone
                    // already shows itself at the next read.
                    let _ = stream.set_nodelay(true);
                    ByteStream::Tcp(stream)
                })
            }
            Listener::Unix(listener, _) => {
                listener.accept().await.map(|(stream, _)| ByteStream::Unix(stream))
            }
        };
        match accepted {
            Ok(stream) => return stream,
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                tracing::error!(%error, "a connection cannot be accepted");
                sleep(REST).await;
            }
        }
    }
}

/// One connection's bytes. A type for all kinds, so that the connection's code is there once.
enum ByteStream {
    Tcp(TcpStream),
    /// Boxed: its keys and buffers must not make every other connection larger.
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl AsyncRead for ByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_a_part_of_the_path_does() {
        let rest = |uri: &str| without_prefix(&uri.parse().unwrap(), "/models/a").map(|uri| uri.to_string());
        assert_eq!(rest("/models/a/v1/models?x=1").as_deref(), Some("/v1/models?x=1"));
        assert_eq!(rest("/models/a").as_deref(), Some("/"));
        assert_eq!(rest("/models/a?x").as_deref(), Some("/?x"));
        assert_eq!((rest("/models/ab/v1"), rest("/v1/models"), rest("/models")), (None, None, None));
    }
}
