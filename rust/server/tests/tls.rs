//! Serving over TLS: streams, certificates of clients, renewal, and what is wrong at the start or on the wire.
//!
//! `data/tls/make.sh` makes the certificates; they are valid until 2120.

#![allow(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use common::{Answer, Server, chat_body, letters, read_answer, slow_letters, streamed, wait_until};
use frizzen_server::tls::{Tls, TlsArgs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

/// Longer than anything takes that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);

type Secure = StreamOwned<ClientConnection, TcpStream>;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(name)
}

fn certificate(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(data(&format!("{name}.pem"))).unwrap()
}

/// The flags of a server with the certificate `server`, and these.
fn flags(more: &[&str]) -> Vec<String> {
    let files = ["--ssl-certfile", data("server.pem").to_str().unwrap(), "--ssl-keyfile"].map(str::to_owned);
    let key = data("server.key").to_str().unwrap().to_owned();
    files.into_iter().chain([key]).chain(more.iter().map(|flag| (*flag).to_owned())).collect()
}

fn server(more: &[&str]) -> Server {
    let flags = flags(more);
    Server::with(
        &flags.iter().map(String::as_str).collect::<Vec<_>>(),
        slow_letters(Duration::from_millis(1)),
    )
}

/// Connects as a client that trusts the authority, with the certificate of this name.
fn connect(address: SocketAddr, name: Option<&str>) -> Secure {
    let mut roots = RootCertStore::empty();
    roots.add(certificate("authority")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match name {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let key = PrivateKeyDer::from_pem_file(data(&format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(vec![certificate(name)], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let host = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), host).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(connection, stream)
}

fn ask(stream: &mut Secure, head: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(stream, "{head}\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")?;
    stream.flush()
}

fn get(address: SocketAddr, path: &str, name: Option<&str>) -> std::io::Result<Answer> {
    let mut stream = connect(address, name);
    ask(&mut stream, &format!("GET {path} HTTP/1.1\r\nconnection: close"), "")?;
    // A refused certificate shows itself at the first read.
    let mut first = [0];
    stream.read_exact(&mut first)?;
    Ok(read_answer(first.chain(stream)))
}

/// What the server sends until it closes, and how long that takes.
fn rest(mut stream: TcpStream) -> (Vec<u8>, Duration) {
    let started = Instant::now();
    let mut bytes = Vec::new();
    // A reset is an end too; waiting for ever is none.
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "the connection is stuck");
    }
    (bytes, started.elapsed())
}

fn raw(server: &Server, bytes: &[u8]) -> TcpStream {
    server.client().raw(bytes)
}

#[test]
fn a_stream_is_the_same_over_tls_and_ends_with_its_close() {
    let server = server(&[]);
    let mut stream = connect(server.address, None);
    let body = streamed(&chat_body(&json!({"max_tokens": 200}))).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\nconnection: close";
    ask(&mut stream, head, &body).unwrap();
    let events = read_answer(&mut stream).events();
    assert_eq!(common::finish_reasons(&events, 0), ["length"]);
    assert_eq!(common::joined(&events, 0).len(), 200);
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    // Without this, a client cannot tell the end from a cut.
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    server.quiesce();
    assert_eq!(get(server.address, "/server_info", None).unwrap().ok()["http"]["tls"], json!(true));
}

#[test]
fn a_client_that_leaves_a_stream_over_tls_frees_what_it_had() {
    let server = server(&[]);
    let mut stream = connect(server.address, None);
    let body = json!({"prompt": "x", "max_tokens": 4000, "stream": true}).to_string();
    ask(&mut stream, "POST /v1/completions HTTP/1.1\r\ncontent-type: application/json", &body).unwrap();
    stream.read_exact(&mut [0; 200]).unwrap();
    drop(stream);
    server.quiesce();
}

#[test]
fn clients_without_a_good_certificate_are_refused_as_far_as_was_asked() {
    let authority = data("authority.pem");
    let authority = authority.to_str().unwrap();
    for (requirement, nobody, stranger) in
        [("0", true, true), ("optional", true, false), ("2", false, false), ("required", false, false)]
    {
        let server = server(&["--ssl-ca-certs", authority, "--ssl-cert-reqs", requirement]);
        let served = |name| get(server.address, "/ping", name).is_ok_and(|answer| answer.status == 200);
        assert!(served(Some("client")), "{requirement}");
        assert_eq!((served(None), served(Some("stranger"))), (nobody, stranger), "{requirement}");
    }
}

#[test]
fn a_renewed_certificate_is_taken_without_a_cut_and_a_broken_one_is_not() {
    let directory = std::env::temp_dir().join(format!("frizzen-tls-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (chain, key) = (directory.join("tls.pem"), directory.join("tls.key"));
    let put = |name: &str| {
        fs::copy(data(&format!("{name}.key")), &key).unwrap();
        fs::copy(data(&format!("{name}.pem")), &chain).unwrap();
    };
    put("server");
    let (chain, key) = (chain.to_str().unwrap(), key.to_str().unwrap());
    let server =
        Server::with(&["--ssl-certfile", chain, "--ssl-keyfile", key, "--enable-ssl-refresh"], letters());
    let shown = || {
        let mut stream = connect(server.address, None);
        ask(&mut stream, "GET /ping HTTP/1.1\r\nconnection: close", "").unwrap();
        read_answer(&mut stream);
        stream.conn.peer_certificates().unwrap()[0].clone()
    };
    let mut open = connect(server.address, None);
    ask(&mut open, "GET /ping HTTP/1.1", "").unwrap();
    open.read_exact(&mut [0; 12]).unwrap();
    assert_eq!(shown(), certificate("server"));
    // The key of another certificate: what was there goes on.
    fs::copy(data("stranger.key"), key).unwrap();
    let broken = Instant::now();
    while broken.elapsed() < Duration::from_millis(1500) {
        assert_eq!(shown(), certificate("server"));
    }
    put("renewed");
    wait_until("the renewed certificate is shown", || shown() == certificate("renewed"));
    ask(&mut open, "GET /ping HTTP/1.1\r\nconnection: close", "").unwrap();
    let mut both = String::new();
    open.read_to_string(&mut both).unwrap();
    assert!(both.contains("HTTP/1.1 200"), "{both}");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn http_on_a_port_of_https_is_told_so() {
    let server = server(&[]);
    let long = "x".repeat(50_000);
    for request in [
        "GET /health HTTP/1.1\r\nhost: t\r\n\r\n".to_owned(),
        format!("POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 50000\r\n\r\n{long}"),
    ] {
        let answer = read_answer(raw(&server, request.as_bytes()));
        let (status, kind, _) = answer.error();
        assert_eq!((status, kind.as_str()), (400, "BadRequestError"));
        assert!(answer.text().contains("https"), "{}", answer.text());
    }
}

#[test]
fn a_handshake_that_drips_or_never_comes_ends_in_time_and_others_are_served() {
    let server = server(&["--header-timeout", "0.3"]);
    // Nothing; the start of a record; a record of 16 KiB of which one byte comes.
    let starts: [&[u8]; 3] = [b"", b"\x16\x03\x01", b"\x16\x03\x01\x40\x00\x01"];
    let slow: Vec<_> = starts.iter().cycle().take(60).map(|start| raw(&server, start)).collect();
    assert_eq!(get(server.address, "/health", None).unwrap().status, 200);
    let started = Instant::now();
    for stream in slow {
        rest(stream);
    }
    assert!(started.elapsed() < Duration::from_secs(10));
    // The head of a request has its own time, after the handshake.
    let mut silent = connect(server.address, None);
    silent.write_all(b"GET /health HTTP/1.1\r\n").unwrap();
    let mut said = Vec::new();
    let _ = silent.read_to_end(&mut said);
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 408"));
}

#[test]
fn what_is_no_handshake_ends_at_once_and_the_server_goes_on() {
    let server = server(&[]);
    let garbage: [&[u8]; 4] = [
        b"\x16\x03\x01\xff\xff\x01",
        b"\x16\x03\x03\x00\x05hello",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x80\x2e\x01\x03\x01 an old client",
    ];
    for bytes in garbage {
        let (said, took) = rest(raw(&server, bytes));
        assert!(took < Duration::from_secs(10), "{bytes:?}");
        assert!(said.len() < 1000);
    }
    assert_eq!(get(server.address, "/health", None).unwrap().status, 200);
}

#[test]
fn a_drain_waits_for_no_handshake() {
    let mut server = server(&[]);
    let begun = raw(&server, b"\x16\x03\x01");
    let mut idle = connect(server.address, None);
    ask(&mut idle, "GET /ping HTTP/1.1", "").unwrap();
    idle.read_exact(&mut [0; 12]).unwrap();
    server.signal();
    let started = Instant::now();
    server.outcome();
    assert!(started.elapsed() < Duration::from_secs(5));
    rest(begun);
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    tls: TlsArgs,
}

fn refusal(flags: &[String]) -> String {
    let args = Cli::try_parse_from(std::iter::once("serve".to_owned()).chain(flags.iter().cloned()));
    let args = args.map_err(|error| error.to_string()).unwrap();
    Tls::load(&args.tls).err().unwrap_or_else(|| panic!("{flags:?} was taken"))
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_name() {
    let directory = std::env::temp_dir().join(format!("frizzen-tls-bad-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let made = |name: &str, text: &[u8]| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let empty = made("empty.pem", b" \n");
    let binary = made("key.der", &certificate("server"));
    let cut = made("cut.pem", &fs::read(data("server.pem")).unwrap()[..300]);
    let none = made("none.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let both = made(
        "both.pem",
        &[fs::read(data("server.pem")).unwrap(), fs::read(data("server.key")).unwrap()].concat(),
    );
    let nowhere = directory.join("nowhere.pem");
    let (chain, key) = (data("server.pem"), data("server.key"));
    let cases = [
        (&nowhere, &key, "nowhere.pem cannot be read: No such file"),
        (&directory, &key, "cannot be read: Is a directory"),
        (&empty, &key, "empty.pem is empty"),
        (&chain, &empty, "empty.pem is empty"),
        (&chain, &nowhere, "--ssl-keyfile"),
        (&binary, &key, "key.der holds no certificate in PEM"),
        (&chain, &binary, "key.der holds no private key in PEM"),
        (&cut, &key, "cut.pem is no valid PEM"),
        (&none, &key, "none.pem cannot be used"),
        (&key, &key, "server.key holds no certificate in PEM"),
        (&chain, &chain, "server.pem holds no private key in PEM"),
        (&chain, &data("stranger.key"), "stranger.key is not that of the certificate in"),
        (&chain, &data("encrypted.key"), "encrypted.key is encrypted"),
        (&chain, &data("encrypted-sec1.key"), "encrypted-sec1.key is encrypted"),
    ];
    let named = |flag: &str, path: &Path| [flag.to_owned(), path.to_str().unwrap().to_owned()];
    for (chain, key, wanted) in cases {
        let said = refusal(&[named("--ssl-certfile", chain), named("--ssl-keyfile", key)].concat());
        assert!(said.contains(wanted), "{said:?} does not say {wanted:?}");
    }
    let said = refusal(&named("--ssl-certfile", &chain));
    assert!(said.contains("server.pem holds no private key") && said.contains("--ssl-keyfile"), "{said}");
    for (authority, wanted) in
        [(&nowhere, "nowhere.pem cannot be read"), (&none, "none.pem holds a certificate")]
    {
        let said = refusal(&[flags(&[]), named("--ssl-ca-certs", authority).to_vec()].concat());
        assert!(said.starts_with("--ssl-ca-certs") && said.contains(wanted), "{said}");
    }
    assert!(refusal(&flags(&["--ssl-cert-reqs", "2"])).contains("--ssl-ca-certs does not say"));
    let args = TlsArgs { ssl_certfile: Some(both), ..TlsArgs::default() };
    assert!(Tls::load(&args).unwrap().is_some(), "the key stands in the certificate's file");
    assert!(Tls::load(&TlsArgs::default()).unwrap().is_none());
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn flags_that_need_a_certificate_are_refused_without_one() {
    for flags in [
        &["--ssl-keyfile", "k"][..],
        &["--ssl-ca-certs", "c"],
        &["--ssl-cert-reqs", "2"],
        &["--enable-ssl-refresh"],
        &["--ssl-certfile", "c", "--ssl-cert-reqs", "3"],
    ] {
        assert!(Cli::try_parse_from(std::iter::once(&"serve").chain(flags)).is_err(), "{flags:?}");
    }
}
