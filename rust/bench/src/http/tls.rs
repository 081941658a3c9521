//! TLS to the server under test: whom to believe.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Url;

/// Names the file of trusted authorities, as for OpenSSL.
const VARIABLE: &str = "SSL_CERT_FILE";
/// Where systems have it: Debian and Arch, Red Hat, SUSE, Alpine and macOS.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Flags that say whom to believe.
#[derive(Args, Clone, Debug, Default)]
pub struct Trust {
    /// Who signs the server's certificate, as PEM; `SSL_CERT_FILE` or the system's file if left out
    #[arg(long, value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
    /// Take any certificate
    #[arg(long, conflicts_with = "ca_cert")]
    pub insecure: bool,
}

/// How to speak TLS to one server.
#[derive(Debug)]
pub(super) struct Secure {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Secure {
    /// `None` if the server is spoken to without TLS.
    ///
    /// # Errors
    /// A sentence: authorities that cannot be read, or flags that have no effect.
    pub(super) fn new(url: &Url, trust: &Trust) -> Result<Option<Self>, String> {
        if !url.secure {
            return if trust.insecure || trust.ca_cert.is_some() {
                Err("--ca-cert and --insecure are for https, and the server's URL is http".to_owned())
            } else {
                Ok(None)
            };
        }
        let name = ServerName::try_from(url.host.clone())
            .map_err(|_| format!("'{}' cannot be the name in a certificate", url.host))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("no version of TLS can be spoken: {error}"))?;
        let builder = if trust.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        } else {
            builder.with_root_certificates(authorities(trust)?)
        };
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Some(Self { config: Arc::new(config), name }))
    }

    pub(super) async fn connect(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        TlsConnector::from(Arc::clone(&self.config)).connect(self.name.clone(), stream).await
    }
}

fn authorities(trust: &Trust) -> Result<RootCertStore, String> {
    let named = trust.ca_cert.clone().or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
    let system = || BUNDLES.iter().map(Path::new).find(|path| path.is_file()).map(Path::to_owned);
    let path = named.or_else(system).ok_or_else(|| {
        format!(
            "nobody says who signs certificates: --ca-cert FILE or {VARIABLE} does, --insecure asks nobody"
        )
    })?;
    let refusal = |why: &str| format!("the authorities in {} cannot be used: {why}", path.display());
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(&path).map_err(|error| refusal(&error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| refusal(&error.to_string()))?;
        // Systems list some that are too old to be read: the others count.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() { Err(refusal("there is no certificate in it")) } else { Ok(roots) }
}

/// Believes everybody: for a server under test with a certificate that nobody signed.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
