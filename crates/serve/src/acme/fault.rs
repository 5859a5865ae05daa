//! Why a certificate was not issued: what we were doing, what came of it, and whose turn it is.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use logic::acme::Setback;

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The authority could not be spoken with, or said no.
    #[error("cannot {doing}: {}", told(source))]
    Authority {
        /// What we were doing.
        doing: &'static str,
        /// What came of it.
        source: instant_acme::Error,
    },
    /// The authority says that a name is not ours.
    #[error("the authority does not see that {name} is ours by {challenge}: {}", short(why))]
    Validation {
        /// The name.
        name: String,
        /// Word of the challenge.
        challenge: &'static str,
        /// What the authority says.
        why: String,
    },
    /// The authority offers other challenges only.
    #[error("the authority does not offer {challenge} for {name}: choose another challenge")]
    NoChallenge {
        /// The name.
        name: String,
        /// Word of the challenge.
        challenge: &'static str,
    },
    /// The authority does not come to an end.
    #[error("the authority did not {what} within {} s", limit.as_secs())]
    Late {
        /// What it should have done.
        what: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// What was issued cannot be served.
    #[error("the certificate that was issued cannot be used: {0}")]
    Unusable(String),
    /// A file of ours cannot be read or written.
    #[error("{}: cannot be {what}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// `read` or `written`.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The account's file is not what was written there.
    #[error(
        "{}: is damaged: {why}; it is left as it is: put it back from a backup, or remove it to register a new account",
        path.display()
    )]
    Account {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The configuration names something that cannot be used.
    #[error("{key}: {why}")]
    Setting {
        /// The key.
        key: &'static str,
        /// Why not.
        why: String,
    },
    /// Our own cryptography failed.
    #[error("cannot make a key or a request: {0}")]
    Crypto(String),
}

impl Fault {
    /// What follows from it.
    pub(super) fn setback(&self) -> Setback {
        let Self::Authority { source, .. } = self else { return Setback::Refused };
        match source {
            instant_acme::Error::Other(inner) => match inner.downcast_ref::<ClientError>() {
                Some(error) if error.is_unavailability() => Setback::Unavailable,
                _ => Setback::Refused,
            },
            instant_acme::Error::Api(problem) => {
                let is_nonce = problem.r#type.as_deref().is_some_and(|kind| kind.ends_with(":badNonce"));
                let is_theirs = problem.status.is_some_and(|status| status >= 500);
                if is_nonce || is_theirs { Setback::Unavailable } else { Setback::Refused }
            }
            _ => Setback::Refused,
        }
    }
}

/// An error of the authority, with our hint where there is one.
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

/// What others wrote, on one line and not too much of it.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 600;
    let clean: String =
        text.chars().map(|char| if char.is_control() { ' ' } else { char }).take(MOST + 1).collect();
    match clean.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}...", &clean[..at]),
        None => clean,
    }
}
/// Why a request has no answer that could be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// There was no connection.
    #[error("{host}: cannot be reached: {source}")]
    Connect { host: String, source: io::Error },
    /// It is not who it says.
    #[error("{host}: TLS failed: {source}{}", trust_hint(source))]
    Tls { host: String, source: io::Error },
    /// It stopped speaking.
    #[error("{host}: the connection broke: {why}")]
    Broken { host: String, why: String },
    /// It did not speak.
    #[error("{host}: no answer within {} s", limit.as_secs_f32())]
    Late { host: String, limit: Duration },
    /// It said something else.
    #[error(
        "{host}: answered {status} with {kind}{}: this is not the answer of an ACME server",
        excerpt(body)
    )]
    Foreign { host: String, status: u16, kind: String, body: String },
    /// The URL has no host.
    #[error("\"{0}\" is no URL with https")]
    Url(String),
}

impl ClientError {
    /// Whether the authority did not come to see the request.
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
            "; it shows the certificate of a CA as its own: let that CA sign one for the host, and name the CA in `ca`"
        }
        _ => "",
    }
}
pub(super) fn excerpt(body: &str) -> String {
    let start: String = short(body).chars().take(80).collect();
    if start.trim().is_empty() { String::new() } else { format!(" (\"{}\")", start.trim()) }
}
