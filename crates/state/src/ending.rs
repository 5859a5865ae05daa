//! Endings of sessions: one word for each reason that an operator may look for in the access log and the counters.

use logic::account::Refusal;
use logic::http1::refusal::Refusal as HttpRefusal;
use logic::http1::request::RequestHead;
use logic::http2::flood::Flood;
use logic::http2::malformed::Malformed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Completed as client and backend wanted.
    Ok,
    /// Penstock answered with a configured redirect.
    Redirected,
    /// Penstock answered an ACME challenge.
    AcmeChallenge,
    /// The request was ambiguous, malformed or over a limit.
    Refused(HttpRefusal),
    /// The HTTP/2 request was malformed.
    Malformed(Malformed),
    /// The client violated the HTTP/2 protocol: its connection was closed.
    Http2Fault,
    /// The client sent too many frames that transfer no data: its connection was closed.
    Flood(Flood),
    /// The frame layer detected a flood by the content of frames: the connection was closed.
    FrameFlood,
    /// The heads of all open requests of the connection are too large together.
    HeadsTooLarge,
    /// The framing of the request's body is malformed.
    BodyMalformed,
    BodyTooLarge,
    /// The client did not send its request within the time limit.
    ClientTimeout,
    /// The client closed its connection.
    ClientClosed,
    /// No route matches the request.
    NoRoute,
    /// A route depends on the path, and the path is ambiguous.
    AmbiguousPath,
    /// The request has passed through Penstock too often (request loop).
    RequestLoop,
    /// No backend of the pool is available.
    NoBackendAvailable,
    /// Every backend is at its session limit, and the queue is full.
    QueueFull,
    /// No backend became free within the time limit.
    QueueTimeout,
    /// No connection to a backend could be established.
    ConnectFailed,
    /// The backend closed the connection before its response.
    BackendClosed,
    /// The backend did not respond within the time limit.
    BackendTimeout,
    /// The backend was judged down or ejected while it had the request, and did not respond in time.
    BackendDown,
    /// The backend does not take WebSockets over HTTP/2.
    NoWebSockets,
    /// The backend's response was not valid HTTP.
    BadResponse,
    /// The backend closed the connection in the middle of its response.
    BackendAborted,
    /// No data was transferred for the idle timeout.
    IdleTimeout,
    TlsFailed(TlsFault),
    /// The TLS handshake exceeded its time limit.
    TlsTimeout,
    /// A required PROXY header was missing or malformed.
    ProxyHeader,
    /// The listener is at its connection limit.
    ListenerFull,
    /// No descriptor was free, or the client connection or its address has used its share.
    NoDescriptors(Refusal),
    /// The session was still open at the drain limit of a stopping process.
    DrainTimeout,
    /// The session panicked: a bug in Penstock.
    InternalError,
}

impl Ending {
    /// Reports whether the session had a fault; penstock's own answers that the configuration asks for are none.
    pub fn is_fault(self) -> bool {
        !matches!(self, Self::Ok | Self::Redirected | Self::AcmeChallenge)
    }

    /// Word for logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Redirected => "redirected",
            Self::AcmeChallenge => "acme-challenge",
            Self::Refused(refusal) => refusal.reason(),
            Self::Malformed(malformed) => malformed.reason(),
            Self::Http2Fault => "h2-protocol-error",
            Self::Flood(flood) => flood.reason(),
            Self::FrameFlood => "h2-flood",
            Self::HeadsTooLarge => "h2-headers-too-large",
            Self::BodyMalformed => "body-malformed",
            Self::BodyTooLarge => "body-too-large",
            Self::ClientTimeout => "client-timeout",
            Self::ClientClosed => "client-closed",
            Self::NoRoute => "no-route",
            Self::AmbiguousPath => "ambiguous-path",
            Self::RequestLoop => "request-loop",
            Self::NoBackendAvailable => "no-backend-available",
            Self::QueueFull => "queue-full",
            Self::QueueTimeout => "queue-timeout",
            Self::ConnectFailed => "connect-failed",
            Self::BackendClosed => "backend-closed",
            Self::BackendTimeout => "backend-timeout",
            Self::BackendDown => "backend-down",
            Self::NoWebSockets => "backend-no-websockets",
            Self::BadResponse => "backend-bad-response",
            Self::BackendAborted => "backend-aborted",
            Self::IdleTimeout => "idle-timeout",
            Self::TlsFailed(fault) => fault.word(),
            Self::TlsTimeout => "tls-timeout",
            Self::ProxyHeader => "proxy-header",
            Self::ListenerFull => "listener-full",
            Self::NoDescriptors(why) => why.reason(),
            Self::DrainTimeout => "drain-timeout",
            Self::InternalError => "internal-error",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFault {
    /// The client did not send TLS; usually plain HTTP.
    NotTls,
    /// No certificate for the server name, or the client sent no server name.
    NoCertificate,
    /// The client offers no supported version or cipher.
    Incompatible,
    /// The client sent an alert; usually it does not trust the certificate.
    Alert,
    Closed,
    /// Any other protocol error.
    Protocol,
    /// The handshake was closed because too many others began.
    TooManyHandshakes,
    /// The client's certificate is invalid or missing.
    Client(ClientFault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFault {
    Missing,
    /// The certificate is malformed or has an unknown critical extension.
    Malformed,
    /// The certificate is not issued by a trusted CA.
    UnknownAuthority,
    Expired,
    NotYetValid,
    /// A CRL lists the certificate.
    Revoked,
    /// No CRL covers the certificate.
    CrlMissing,
    /// The CRL for the certificate is expired.
    CrlExpired,
    /// None of the certificate's names is allowed.
    Name,
    /// The certificate is not for clients, or is a CA certificate.
    Purpose,
    /// A signature is wrong, or its algorithm is not accepted.
    Signature,
}

impl TlsFault {
    fn word(self) -> &'static str {
        match self {
            Self::NotTls => "tls-not-tls",
            Self::NoCertificate => "tls-no-certificate",
            Self::Incompatible => "tls-incompatible",
            Self::Alert => "tls-client-alert",
            Self::TooManyHandshakes => "tls-too-many-handshakes",
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
            Self::CrlMissing => "client-certificate-crl-missing",
            Self::CrlExpired => "client-certificate-crl-expired",
            Self::Name => "client-certificate-name",
            Self::Purpose => "client-certificate-purpose",
            Self::Signature => "client-certificate-signature",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientProtocol {
    /// HTTP/1.0 or HTTP/1.1; the request has the version.
    Http1,
    /// HTTP/2; the request was converted to HTTP/1.1.
    Http2,
}

/// Request head: its bytes, and the spans into them.
pub struct Received {
    /// Bytes of the head, without the body.
    pub head: Vec<u8>,
    pub request: RequestHead,
}
