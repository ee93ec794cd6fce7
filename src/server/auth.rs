//! Who calls: two bearer tokens, and what each may do.
//!
//! A *data* token samples, scores and reads; an *admin* token does that and also pauses the server and changes its weights. Either both are
//! set or none; without tokens every caller is `anonymous` and may do everything, which is why a public address needs them. Tokens are
//! compared as SHA-256 digests in constant time, and appear in no log, error or debug text. `/livez` and `/readyz` need no token
//! (orchestrators probe without), `/metrics` needs the data token (Prometheus: `authorization: {credentials_file: ...}`).

use std::fmt;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};

use super::error::ApiError;

/// Fewer characters are guessed too soon.
const SHORTEST: usize = 16;

/// Who sent a request; in every request's extensions, for usage counts and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// Sent no token that is known.
    Anonymous,
    /// Sent the data token.
    Data,
    /// Sent the admin token.
    Admin,
}

impl Caller {
    /// The key's label in metrics, logs and the store's usage table.
    pub fn key(self) -> &'static str {
        match self {
            Caller::Anonymous => "anonymous",
            Caller::Data => "data",
            Caller::Admin => "admin",
        }
    }
}

/// What a route asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Open,
    /// Either token, where tokens are set.
    Data,
    /// The admin token, where tokens are set.
    Admin,
}

/// The tokens of a server, as digests.
#[derive(Clone, Default)]
pub struct Tokens(Option<[[u8; 32]; 2]>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.are_set() { "Tokens(set)" } else { "Tokens(none)" })
    }
}

impl Tokens {
    /// Reads both tokens, each as itself or as `sha256:` and 64 hexadecimal digits; both empty: none. Fails with the configuration's key
    /// and a sentence.
    pub fn new(data: &str, admin: &str) -> Result<Self, (&'static str, String)> {
        const DATA: &str = "server.data_token";
        const ADMIN: &str = "server.admin_token";
        match (data.is_empty(), admin.is_empty()) {
            (true, true) => return Ok(Tokens(None)),
            (true, false) => return Err((DATA, format!("is not set, but {ADMIN} is; set both, or none"))),
            (false, true) => return Err((ADMIN, format!("is not set, but {DATA} is; set both, or none"))),
            (false, false) => {}
        }
        let digests = [read(data).map_err(|problem| (DATA, problem))?, read(admin).map_err(|problem| (ADMIN, problem))?];
        if digests[0] == digests[1] {
            return Err((ADMIN, format!("equals {DATA}; every trainer could then pause the server: use another token")));
        }
        Ok(Tokens(Some(digests)))
    }

    /// Whether callers need one.
    pub fn are_set(&self) -> bool {
        self.0.is_some()
    }

    /// Who sent these headers.
    pub fn caller(&self, headers: &HeaderMap) -> Caller {
        let (Some([data, admin]), Some(token)) = (&self.0, bearer(headers)) else { return Caller::Anonymous };
        let digest: [u8; 32] = Sha256::digest(token).into();
        // Both comparisons are made whatever the first one says.
        match (same(&digest, data), same(&digest, admin)) {
            (_, true) => Caller::Admin,
            (true, _) => Caller::Data,
            _ => Caller::Anonymous,
        }
    }

    /// Whether `caller`, who sent `headers`, may use a route.
    pub fn check(&self, caller: Caller, access: Access, headers: &HeaderMap) -> Result<(), Denied> {
        match access {
            _ if !self.are_set() => Ok(()),
            Access::Open => Ok(()),
            _ if caller == Caller::Anonymous && bearer(headers).is_some() => Err(Denied::Unknown),
            _ if caller == Caller::Anonymous => Err(Denied::Missing),
            Access::Admin if caller != Caller::Admin => Err(Denied::NotAdmin),
            Access::Data | Access::Admin => Ok(()),
        }
    }
}

/// Why a caller may not use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No bearer token came with the request.
    Missing,
    /// One came that is neither.
    Unknown,
    /// The data token, where the admin token is needed.
    NotAdmin,
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        let unauthorized = |message: &str| ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message);
        match denied {
            Denied::Missing => unauthorized("this server asks for a token; send `Authorization: Bearer TOKEN`"),
            Denied::Unknown => unauthorized("the bearer token is none of this server's; check server.data_token and server.admin_token"),
            Denied::NotAdmin => ApiError::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "the data token may not do this; send the admin token (server.admin_token)",
            ),
        }
    }
}

impl Denied {
    /// The challenge that goes with a 401.
    pub fn challenge(self) -> Option<HeaderValue> {
        match self {
            Denied::Missing => Some(HeaderValue::from_static("Bearer realm=\"adaroll\"")),
            Denied::Unknown => Some(HeaderValue::from_static("Bearer realm=\"adaroll\", error=\"invalid_token\"")),
            Denied::NotAdmin => None,
        }
    }
}

/// The token of an `Authorization: Bearer` header.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Compares without telling by its time where the first difference is.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |differing, (x, y)| differing | (x ^ y))) == 0
}

fn read(token: &str) -> Result<[u8; 32], String> {
    if let Some(hex) = token.strip_prefix("sha256:") {
        let help = "must hold 64 hexadecimal digits after \"sha256:\", as `printf %s TOKEN | sha256sum` prints them";
        if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(help.into());
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| help.to_owned())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| help.to_owned())?;
        }
        return Ok(digest);
    }
    if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "must be at least {SHORTEST} characters that are visible ASCII without spaces (openssl rand -hex 24 makes one), or \"sha256:\" and a digest"
        ));
    }
    Ok(Sha256::digest(token.as_bytes()).into())
}
