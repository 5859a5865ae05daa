//! Reasons why a certificate was not issued: the failed step, its result, and who must act.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use logic::acme::OrderFailure;

#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// A request to the authority failed, or the authority refused it.
    #[error("cannot {doing}: {}", told(source))]
    Authority { doing: &'static str, source: instant_acme::Error },
    /// The authority could not validate that we control a name.
    #[error("the authority does not see that {name} is ours by {challenge}: {}", short(why))]
    Validation { name: String, challenge: &'static str, why: String },
    #[error("the authority does not offer {challenge} for {name}: choose another challenge")]
    NoChallenge { name: String, challenge: &'static str },
    /// The name server did not do what dns-01 needs.
    #[error("the name server {server} does not {doing}: {}", short(why))]
    Dns { server: SocketAddr, doing: &'static str, why: String },
    /// The name server could not be asked, or did not answer.
    #[error("the name server {server} does not {doing}: {}", short(why))]
    DnsUnavailable { server: SocketAddr, doing: &'static str, why: String },
    /// The new certificate may not be used yet, or the record of the old one is left.
    #[error("the TLSA record: {0}")]
    Tlsa(String),
    /// The command of dns-01 failed.
    #[error("the command {program} does not {doing}: {}", short(why))]
    Command { program: String, doing: &'static str, why: String },
    /// The task that adds a record was ended.
    #[error("cannot add the record: {0}")]
    Records(String),
    /// The authority did not finish within the limit.
    #[error("the authority did not {what} within {} s", limit.as_secs())]
    Late {
        /// Unfinished step, as a verb with its object.
        what: &'static str,
        limit: Duration,
    },
    #[error("the certificate that was issued cannot be used: {0}")]
    Unusable(String),
    /// It counts against the rate limits of the authority, as every one that is issued.
    #[error("the certificate that was issued is lost: {0}")]
    NotInstalled(Box<Fault>),
    #[error("{}: cannot be {what}: {source}", path.display())]
    File {
        path: PathBuf,
        /// `read` or `written`.
        what: &'static str,
        source: io::Error,
    },
    /// The account file does not have the contents that we wrote.
    #[error(
        "{}: is damaged: {why}; it is left as it is: put it back from a backup, or remove it to register a new account",
        path.display()
    )]
    Account { path: PathBuf, why: String },
    /// The configured value of `key` cannot be used.
    #[error("{key}: {why}")]
    Setting { key: &'static str, why: String },
    #[error("cannot make a key or a request: {0}")]
    Crypto(String),
}

impl Fault {
    /// The certificate was issued, and could not be written.
    pub(super) fn not_installed(self) -> Self {
        Self::NotInstalled(Box::new(self))
    }

    /// How the next order is paced.
    pub(super) fn setback(&self) -> OrderFailure {
        let source = match self {
            Self::Authority { source, .. } => source,
            // The authority has judged nothing, and an operator mends it: the next try is soon.
            // The same of a certificate that was issued and waits for its record: the next try orders nothing.
            Self::DnsUnavailable { .. } | Self::Tlsa(_) | Self::File { .. } => {
                return OrderFailure::Unavailable;
            }
            Self::Validation { .. }
            | Self::NoChallenge { .. }
            | Self::Dns { .. }
            | Self::Command { .. }
            | Self::Records(_)
            | Self::Late { .. }
            | Self::Unusable(_)
            | Self::NotInstalled(_)
            | Self::Account { .. }
            | Self::Setting { .. }
            | Self::Crypto(_) => return OrderFailure::Refused,
        };
        match source {
            instant_acme::Error::Other(inner) => match inner.downcast_ref::<ClientError>() {
                Some(error) if error.is_unavailability() => OrderFailure::Unavailable,
                _ => OrderFailure::Refused,
            },
            instant_acme::Error::Api(problem) => {
                let is_nonce = problem.r#type.as_deref().is_some_and(|kind| kind.ends_with(":badNonce"));
                let is_theirs = problem.status.is_some_and(|status| status >= 500);
                if is_nonce || is_theirs { OrderFailure::Unavailable } else { OrderFailure::Refused }
            }
            _ => OrderFailure::Refused,
        }
    }
}

/// Formats an error of the authority, with our advice if we have one for it.
fn told(error: &instant_acme::Error) -> String {
    let text = match error {
        instant_acme::Error::Json(error) => {
            format!("its answer is not what ACME (RFC 8555) says: {error}; is this the URL of its directory?")
        }
        instant_acme::Error::Api(problem) => {
            let kind = problem.r#type.as_deref().unwrap_or_default();
            let hint = match kind.rsplit(':').next() {
                Some("accountDoesNotExist") => {
                    "; it does not know our account: remove the account's file to register anew"
                }
                Some("externalAccountRequired") => "; it wants external-account",
                _ => "",
            };
            format!("{problem}{hint}")
        }
        other => other.to_string(),
    };
    short(&text)
}

/// Shortens `text` from another program to one line of limited length.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 600;
    let clean: String =
        text.chars().map(|char| if char.is_control() { ' ' } else { char }).take(MOST + 1).collect();
    match clean.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}...", &clean[..at]),
        None => clean,
    }
}
/// Reason why a request has no usable answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("{host}: cannot be reached: {source}")]
    Connect { host: String, source: io::Error },
    /// The TLS handshake failed, or the server's certificate is not trusted.
    #[error("{host}: TLS failed: {source}{}", trust_hint(source))]
    Tls { host: String, source: io::Error },
    #[error("{host}: the connection broke: {why}")]
    Broken { host: String, why: String },
    #[error("{host}: no answer within {} s", limit.as_secs_f32())]
    Late { host: String, limit: Duration },
    /// The answer is not one of an ACME server.
    #[error(
        "{host}: answered {status} with {kind}{}: this is not the answer of an ACME server",
        excerpt(body)
    )]
    Foreign { host: String, status: u16, kind: String, body: String },
    #[error("\"{0}\" is not a URL with https")]
    Url(String),
}

impl ClientError {
    /// Reports whether the authority was unavailable, so that it did not judge the request.
    pub(super) fn is_unavailability(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Tls { .. } | Self::Broken { .. } | Self::Late { .. } => true,
            Self::Foreign { status, .. } => *status >= 500 || *status == 429,
            Self::Url(_) => false,
        }
    }
}

fn trust_hint(error: &io::Error) -> &'static str {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)) => {
            "; the issuer of its certificate is not trusted: name it in `ca`"
        }
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)))
            if other.to_string().contains("CaUsedAsEndEntity") =>
        {
            "; the ACME server presents the certificate of a CA as its own: let that CA sign a certificate for the server, and name the CA in `ca`"
        }
        _ => "",
    }
}
pub(super) fn excerpt(body: &str) -> String {
    let start: String = short(body).chars().take(80).collect();
    if start.trim().is_empty() { String::new() } else { format!(" (\"{}\")", start.trim()) }
}
