//! API keys. Deny by default: every route that the table does not call open needs one of the keys.

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};

use crate::error::ApiError;

/// Where Anthropic's clients put their key.
const API_KEY: &str = "x-api-key";

/// The keys of which a request must bring one; none means that everything is open.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<Box<[u8]>>);

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ApiKeys({})", self.0.len())
    }
}

/// True if both are equal, in a time that depends on their lengths only.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differences =
        a.iter().zip(b).fold(0, |differences, (x, y)| std::hint::black_box(differences | (x ^ y)));
    a.len() == b.len() && differences == 0
}

impl ApiKeys {
    /// Keys from the command line and the environment; empty ones are no keys.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(keys.into_iter().filter(|key| !key.is_empty()).map(|key| key.into_bytes().into()).collect())
    }

    /// Checks the `Authorization` header, or `x-api-key`, which Anthropic's clients send. Two of one kind are as good as
    /// none, and if both are there, both must fit.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let bearers = headers.get_all(AUTHORIZATION).iter().map(|value| bearer(value.as_bytes()));
        let plain = headers.get_all(API_KEY).iter().map(|value| Some(value.as_bytes()));
        let is_single = [headers.get_all(AUTHORIZATION), headers.get_all(API_KEY)]
            .iter()
            .all(|all| all.iter().count() <= 1);
        // Every key is compared, whichever fits.
        let fits = |given: &[u8]| self.0.iter().fold(false, |fits, key| fits | same(key, given));
        let given: Vec<bool> = bearers.chain(plain).map(|given| given.is_some_and(fits)).collect();
        if is_single && !given.is_empty() && given.iter().all(|fits| *fits) {
            Ok(())
        } else {
            let message = "an Authorization header with a valid bearer key, or x-api-key with one, is needed";
            Err(ApiError::new(StatusCode::UNAUTHORIZED, message))
        }
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn allowed(keys: &ApiKeys, headers: &[&[u8]]) -> bool {
        let mut map = HeaderMap::new();
        for value in headers {
            map.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        keys.check(&map).is_ok()
    }

    #[test]
    fn any_of_the_keys_opens_and_nothing_else() {
        let keys = ApiKeys::new(["first".to_owned(), "zweiter-ü".to_owned()]);
        assert!(allowed(&keys, &[b"Bearer first"]));
        assert!(allowed(&keys, &["bearer zweiter-ü".as_bytes()]));
        for bad in [
            &b"Bearer firs"[..],
            b"Bearer firstt",
            b"Bearer ",
            b"first",
            b"Basic first",
            b"Bearer \xff\xfe",
            b"",
        ] {
            assert!(!allowed(&keys, &[bad]), "{bad:?}");
        }
        assert!(!allowed(&keys, &[]));
    }

    #[test]
    fn anthropics_header_opens_too_and_a_wrong_one_beside_a_right_one_does_not() {
        let keys = ApiKeys::new(["k".to_owned()]);
        let allowed = |pairs: &[(&'static str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.append(*name, value.parse().unwrap());
            }
            keys.check(&map).is_ok()
        };
        assert!(allowed(&[("x-api-key", "k")]));
        assert!(allowed(&[("x-api-key", "k"), ("authorization", "Bearer k")]));
        for bad in [
            &[("x-api-key", "kk")][..],
            &[("x-api-key", "")],
            &[("x-api-key", "k"), ("authorization", "Bearer x")],
            &[("x-api-key", "x"), ("authorization", "Bearer k")],
            &[("x-api-key", "k"), ("x-api-key", "k")],
        ] {
            assert!(!allowed(bad), "{bad:?}");
        }
    }

    #[test]
    fn two_headers_are_none() {
        let keys = ApiKeys::new(["k".to_owned()]);
        assert!(!allowed(&keys, &[b"Bearer k", b"Bearer k"]));
    }

    #[test]
    fn without_keys_everything_is_open_and_an_empty_key_is_no_key() {
        assert!(allowed(&ApiKeys::new([String::new()]), &[]));
        assert!(!allowed(&ApiKeys::new([String::new(), "k".to_owned()]), &[b"Bearer "]));
    }
}
