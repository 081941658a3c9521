//! TLS: certificates, their renewal, and handshakes.
//!
//! Invariants: what is wrong with a file is said at the start, with its flag and path; a renewal that cannot be used leaves
//! what was there before; connections keep the certificate with which they began. A handshake is bounded in time by its
//! caller and in memory by rustls (64 KiB).

use std::fs;
use std::future::pending;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use clap::{Args, ValueEnum};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::error::ApiError;

/// How often renewed files are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// The first byte of a TLS connection: a record of the handshake.
const HANDSHAKE: u8 = 22;
/// How long a client that does not speak TLS may take to read that it should.
const FAREWELL: Duration = Duration::from_secs(1);
/// Most bytes of its request that are read meanwhile: closing with bytes unread would take the answer away again.
const MAX_UNREAD: u64 = 64 << 10;

/// Flags of TLS, in vLLM's spelling.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// Serve https with this certificate and those that sign it, as PEM
    #[arg(long, value_name = "FILE")]
    pub ssl_certfile: Option<PathBuf>,
    /// The certificate's private key, as PEM; it may also stand in the certificate's file
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub ssl_keyfile: Option<PathBuf>,
    /// Who signs the certificates of clients, as PEM
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub ssl_ca_certs: Option<PathBuf>,
    /// Whether clients need a certificate: 0 (none is asked for), 1 (one that is sent must be good), 2 (required)
    #[arg(
        long,
        value_enum,
        value_name = "0|1|2",
        default_value_t,
        hide_possible_values = true,
        requires = "ssl_certfile"
    )]
    pub ssl_cert_reqs: CertificateRequirement,
    /// Take renewed files without a restart; open connections go on
    #[arg(long, requires = "ssl_certfile")]
    pub enable_ssl_refresh: bool,
}

/// Whether clients need a certificate: the numbers of Python's `ssl` module, and its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CertificateRequirement {
    /// They are not asked.
    #[default]
    #[value(name = "0", alias = "none")]
    None,
    /// They are asked; whoever sends one that nobody known has signed is refused.
    #[value(name = "1", alias = "optional")]
    Optional,
    /// Whoever sends none is refused too.
    #[value(name = "2", alias = "required")]
    Required,
}

/// What a server needs to speak TLS.
#[derive(Debug)]
pub struct Tls {
    args: TlsArgs,
    current: watch::Sender<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files; `None` without a certificate.
    ///
    /// # Errors
    /// A sentence with the flag, the file, and what is wrong.
    pub fn load(args: &TlsArgs) -> Result<Option<Self>, String> {
        if args.ssl_certfile.is_none() {
            return Ok(None);
        }
        let (current, _) = watch::channel(Arc::new(args.read()?));
        if args.ssl_ca_certs.is_some() && args.ssl_cert_reqs == CertificateRequirement::None {
            tracing::warn!(
                "--ssl-ca-certs has no effect: --ssl-cert-reqs 0 asks no client for a certificate"
            );
        }
        Ok(Some(Self { args: args.clone(), current }))
    }

    /// Agrees with a client on keys. One that speaks HTTP without TLS is told so.
    ///
    /// # Errors
    /// The client left, speaks something else, or brings no certificate that will do.
    pub async fn handshake(&self, mut stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
            // It may be gone, or never read: its own affair.
            let _ = timeout(FAREWELL, refuse_plain(&mut stream)).await;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not speak TLS"));
        }
        let current = Arc::clone(&self.current.borrow());
        TlsAcceptor::from(current).accept(stream).await
    }

    /// Takes renewed files for the connections that come then. Never ends.
    pub async fn refresh(&self) {
        if !self.args.enable_ssl_refresh {
            return pending().await;
        }
        let mut seen = self.stamps().await;
        loop {
            sleep(LOOK).await;
            // Before the files are read: what is written after this look is seen by the next one.
            let stamps = self.stamps().await;
            if stamps == seen {
                continue;
            }
            seen = stamps;
            let args = self.args.clone();
            match spawn_blocking(move || args.read()).await {
                Ok(Ok(config)) => {
                    self.current.send_replace(Arc::new(config));
                    tracing::info!("new connections get the renewed certificate");
                }
                // A key may be written after its certificate: then there is another change.
                Ok(Err(error)) => tracing::warn!("the certificate stays as it was: {error}"),
                Err(error) => tracing::error!(%error, "reading the certificate failed"),
            }
        }
    }

    /// What tells that files were changed.
    async fn stamps(&self) -> Vec<Option<[i64; 5]>> {
        let files: Vec<PathBuf> = self.args.files().cloned().collect();
        let look = move || files.iter().map(|path| stamp(path)).collect();
        spawn_blocking(look).await.unwrap_or_default()
    }
}

fn stamp(path: &Path) -> Option<[i64; 5]> {
    let file = fs::metadata(path).ok()?;
    let inode = file.ino().cast_signed();
    Some([inode, file.size().cast_signed(), file.mtime(), file.mtime_nsec(), file.ctime_nsec()])
}

/// Answers a request that came without TLS.
async fn refuse_plain(stream: &mut TcpStream) -> io::Result<()> {
    let mut body = Vec::new();
    ApiError::new(StatusCode::BAD_REQUEST, "this port speaks https, and the request came as http")
        .write_json(&mut body);
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MAX_UNREAD), &mut tokio::io::sink()).await.map(drop)
}

impl TlsArgs {
    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.ssl_certfile, &self.ssl_keyfile, &self.ssl_ca_certs].into_iter().flatten()
    }

    fn read(&self) -> Result<ServerConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let certificate_path = self.ssl_certfile.as_deref().unwrap_or(Path::new(""));
        let chain = File::read("--ssl-certfile", certificate_path)?;
        let key = match &self.ssl_keyfile {
            Some(path) => File::read("--ssl-keyfile", path)?.key()?,
            None => chain.key().map_err(|error| format!("{error}; --ssl-keyfile names another file"))?,
        };
        let versions = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("no version of TLS can be spoken: {error}"))?;
        let clients = match self.clients(provider)? {
            Some(verifier) => versions.with_client_cert_verifier(verifier),
            None => versions.with_no_client_auth(),
        };
        let mut config =
            clients.with_single_cert(chain.certificates()?, key).map_err(|error| match error {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    let key_path = self.ssl_keyfile.as_deref().unwrap_or(certificate_path).display();
                    format!(
                        "the key in {key_path} is not that of the certificate in {}",
                        chain.path.display()
                    )
                }
                other => chain.refused(&format!("cannot be used: {other}")),
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Who judges the certificates of clients, if they are asked for one.
    fn clients(&self, provider: Arc<CryptoProvider>) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
        // Read in any case: a file that is named must be one that can be used.
        let roots = match &self.ssl_ca_certs {
            Some(path) => Some((path, File::read("--ssl-ca-certs", path)?.roots()?)),
            None => None,
        };
        if self.ssl_cert_reqs == CertificateRequirement::None {
            return Ok(None);
        }
        let Some((path, roots)) = roots else {
            return Err(
                "--ssl-cert-reqs asks for certificates of clients, and --ssl-ca-certs does not say who \
                        signs them"
                    .to_owned(),
            );
        };
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let builder = match self.ssl_cert_reqs {
            CertificateRequirement::Required => builder,
            CertificateRequirement::Optional | CertificateRequirement::None => {
                builder.allow_unauthenticated()
            }
        };
        let verifier =
            builder.build().map_err(|error| format!("--ssl-ca-certs {}: {error}", path.display()))?;
        Ok(Some(verifier))
    }
}

/// A PEM file, and the flag that named it.
struct File<'a> {
    flag: &'static str,
    path: &'a Path,
    text: Vec<u8>,
}

impl<'a> File<'a> {
    fn read(flag: &'static str, path: &'a Path) -> Result<Self, String> {
        let text =
            fs::read(path).map_err(|error| format!("{flag} {} cannot be read: {error}", path.display()))?;
        let file = Self { flag, path, text };
        if file.text.iter().all(u8::is_ascii_whitespace) { Err(file.refused("is empty")) } else { Ok(file) }
    }

    fn refused(&self, why: &str) -> String {
        format!("{} {} {why}", self.flag, self.path.display())
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let all: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&self.text).collect();
        match all {
            Ok(all) if all.is_empty() => Err(self.refused("holds no certificate in PEM")),
            Ok(all) => Ok(all),
            Err(error) => Err(self.refused(&format!("is no valid PEM: {error}"))),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        if self.text.windows(ENCRYPTED.len()).any(|window| window == ENCRYPTED) {
            return Err(self.refused(
                "is encrypted, and nobody is there to give its password: `openssl pkey -in FILE -out FILE` decrypts it",
            ));
        }
        PrivateKeyDer::from_pem_slice(&self.text).map_err(|error| match error {
            pem::Error::NoItemsFound => self.refused("holds no private key in PEM"),
            other => self.refused(&format!("is no valid PEM: {other}")),
        })
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| {
                self.refused(&format!("holds a certificate that cannot be used: {error}"))
            })?;
        }
        Ok(roots)
    }
}

/// In the first lines of a key that has a password, whichever of the two forms it has.
const ENCRYPTED: &[u8] = b"ENCRYPTED";
