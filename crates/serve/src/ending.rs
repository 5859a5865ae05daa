//! How sessions end, in words of their own: one for each reason that an operator may look for in the access log and the counters.

use logic::account::Refusal;
use logic::http1::refusal::Refusal as HttpRefusal;
use logic::http1::request::RequestHead;
use logic::http2::flood::Flood;
use logic::http2::malformed::Malformed;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As both sides wanted.
    Ok,
    /// We answered by configuration: a redirect.
    Redirected,
    /// We showed an authority that a name is ours.
    AcmeChallenge,
    /// The request was ambiguous, broken or over a limit.
    Refused(HttpRefusal),
    /// The request was malformed in HTTP/2.
    Malformed(Malformed),
    /// The client broke HTTP/2 itself: its connection was closed.
    Http2Fault,
    /// The client sent too many frames that move nothing: its connection was closed.
    Flood(Flood),
    /// The same, but seen by the frame layer in what the frames hold.
    FrameFlood,
    /// The heads of the open requests of its connection are too large together.
    HeadsTooLarge,
    /// The request's body broke its framing.
    BodyFault,
    /// The request's body is longer than the limit.
    BodyTooLarge,
    /// The client did not send its request in time.
    ClientTimeout,
    /// The client went away.
    ClientClosed,
    /// No route takes this request.
    NoRoute,
    /// Routes go by path, and this path can be read in two ways.
    AmbiguousPath,
    /// The request has passed through Penstock too often: it goes in a circle.
    Loop,
    /// No backend of the pool is healthy.
    AllDown,
    /// Every backend is at its limit and so is the queue.
    QueueFull,
    /// No backend became free in time.
    QueueTimeout,
    /// No backend could be connected to.
    ConnectFailed,
    /// The backend closed before its answer.
    BackendClosed,
    /// The backend did not answer in time.
    BackendTimeout,
    /// The backend's answer was not HTTP as it must be.
    BackendBad,
    /// The backend broke off in the middle of its answer.
    BackendAborted,
    /// Nothing moved for the whole limit.
    Idle,
    /// TLS handshake failed.
    TlsFailed(TlsFault),
    /// TLS handshake took too long.
    TlsTimeout,
    /// A PROXY header was due and did not come right.
    ProxyHeader,
    /// The listener is at its limit.
    ListenerFull,
    /// It got no descriptor: its connection or its address has its share, or all descriptors are taken.
    NoDescriptors(Refusal),
    /// The process ended and the session was not over at the drain limit.
    Cut,
    /// The session panicked: our fault.
    Panicked,
}

impl Ending {
    /// One word for logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Redirected => "redirected",
            Self::AcmeChallenge => "acme-challenge",
            Self::Refused(refusal) => refusal.reason(),
            Self::Malformed(malformed) => malformed.reason(),
            Self::Http2Fault => "h2-protocol",
            Self::Flood(flood) => flood.reason(),
            Self::FrameFlood => "h2-flood",
            Self::HeadsTooLarge => "h2-heads",
            Self::BodyFault => "body-fault",
            Self::BodyTooLarge => "body-too-large",
            Self::ClientTimeout => "client-timeout",
            Self::ClientClosed => "client-closed",
            Self::NoRoute => "no-route",
            Self::AmbiguousPath => "ambiguous-path",
            Self::Loop => "loop",
            Self::AllDown => "all-down",
            Self::QueueFull => "queue-full",
            Self::QueueTimeout => "queue-timeout",
            Self::ConnectFailed => "connect-failed",
            Self::BackendClosed => "backend-closed",
            Self::BackendTimeout => "backend-timeout",
            Self::BackendBad => "backend-bad",
            Self::BackendAborted => "backend-aborted",
            Self::Idle => "idle",
            Self::TlsFailed(fault) => fault.word(),
            Self::TlsTimeout => "tls-timeout",
            Self::ProxyHeader => "proxy-header",
            Self::ListenerFull => "listener-full",
            Self::NoDescriptors(why) => match why {
                // Among the endings of all kinds, "full" alone would not say what is.
                Refusal::Full => "no-descriptors",
                Refusal::Connection | Refusal::Source => why.reason(),
            },
            Self::Cut => "cut",
            Self::Panicked => "panicked",
        }
    }
}

/// Why a TLS handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFault {
    /// What came is not TLS: plain HTTP, mostly.
    NotTls,
    /// There is no certificate for the name that the client asked for, or it named none.
    NoCertificate,
    /// The client offers no version or cipher that we speak.
    Incompatible,
    /// The client broke off with an alert: it does not trust the certificate, mostly.
    Alert,
    /// The client closed.
    Closed,
    /// Anything else that breaks the protocol.
    Protocol,
    /// It was not finished when too many others began.
    Crowded,
    /// The client's certificate is not good, or missing.
    Client(ClientFault),
}

/// What is wrong with a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFault {
    /// There is none.
    Missing,
    /// It cannot be understood, or asks for something unknown.
    Malformed,
    /// It is of no CA that is trusted.
    UnknownAuthority,
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYetValid,
    /// A list says that it is revoked.
    Revoked,
    /// No list says anything about it.
    RevocationUnknown,
    /// The list that would say something is out of date.
    OldRevocationList,
    /// It has none of the names that are let in.
    Name,
    /// It is not for clients, or is a CA's own.
    Purpose,
    /// A signature is wrong, or made in a way that is not accepted.
    Signature,
}

impl TlsFault {
    fn word(self) -> &'static str {
        match self {
            Self::NotTls => "tls-not-tls",
            Self::NoCertificate => "tls-no-certificate",
            Self::Incompatible => "tls-incompatible",
            Self::Alert => "tls-client-alert",
            Self::Crowded => "tls-crowded",
            Self::Closed => "tls-closed",
            Self::Protocol => "tls-failed",
            Self::Client(fault) => fault.word(),
        }
    }
}

impl ClientFault {
    fn word(self) -> &'static str {
        match self {
            Self::Missing => "client-certificate-missing",
            Self::Malformed => "client-certificate-malformed",
            Self::UnknownAuthority => "client-certificate-unknown-ca",
            Self::Expired => "client-certificate-expired",
            Self::NotYetValid => "client-certificate-not-yet-valid",
            Self::Revoked => "client-certificate-revoked",
            Self::RevocationUnknown => "client-certificate-revocation-unknown",
            Self::OldRevocationList => "client-certificate-revocation-list-old",
            Self::Name => "client-certificate-name",
            Self::Purpose => "client-certificate-purpose",
            Self::Signature => "client-certificate-signature",
        }
    }
}

/// What the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// HTTP/1.0 or HTTP/1.1, as the request says.
    Http1,
    /// HTTP/2; the request was written as one of HTTP/1.1.
    Http2,
}

/// A request head: its bytes, and the spans into them.
pub struct Received {
    /// The bytes, without those of the body.
    pub head: Vec<u8>,
    /// What they mean.
    pub request: RequestHead,
}
