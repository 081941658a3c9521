//! Where a server is.

/// `http://host[:port][/base]`, or https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether it is https.
    pub secure: bool,
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// What stands before every path, without a slash at its end; empty in most cases.
    pub base: String,
}

impl Url {
    /// Parses a base URL. `/v1` at its end, as other clients want it, is dropped: our paths have it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refusal = |why: &str| format!("'{text}' {why}");
        let (secure, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(refusal("is not http://host[:port] or https://host[:port]")),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| refusal("has a port that is none"))?),
            None => (authority, if secure { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(refusal("has no host"));
        }
        let base = path.trim_end_matches('/');
        Ok(Self { secure, host, port, base: base.strip_suffix("/v1").unwrap_or(base).to_owned() })
    }

    /// The value of the header `host`.
    pub fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String) {
        let url = Url::parse(text).unwrap();
        (url.authority(), url.base)
    }

    #[test]
    fn a_base_url_may_end_in_v1_or_have_a_prefix() {
        assert_eq!(parsed("http://127.0.0.1:8000"), ("127.0.0.1:8000".into(), String::new()));
        assert_eq!(parsed("http://h:1/v1/"), ("h:1".into(), String::new()));
        assert_eq!(parsed("http://h/gate/v1"), ("h:80".into(), "/gate".into()));
        assert_eq!(parsed("http://[::1]:8000/"), ("[::1]:8000".into(), String::new()));
        assert_eq!(parsed("http://[::1]"), ("[::1]:80".into(), String::new()));
        assert_eq!(parsed("https://h/v1"), ("h:443".into(), String::new()));
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for bad in ["h:80", "ftp://h", "http://", "http://:80", "http://h:port"] {
            Url::parse(bad).unwrap_err();
        }
    }
}
