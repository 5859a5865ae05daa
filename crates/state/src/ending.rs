//! Endings of sessions: one word for each reason that an operator may look for in the access log and the counters.

use logic::account::Refusal;
use logic::attempts::Fault;
use logic::dsr::Dropped;
use logic::http1::refusal::Refusal as HttpRefusal;
use logic::http1::request::RequestHead;
use logic::http2::flood::Flood;
use logic::http2::malformed::Malformed;
use logic::udp::Refused;

text::meanings! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Ending {
        /// Completed as client and backend wanted.
        Ok = "ok",
        /// Penstock answered with a configured redirect.
        Redirected = "redirected",
        /// Penstock answered as `respond` of a route says.
        Responded = "responded",
        /// Penstock answered an ACME challenge.
        AcmeChallenge = "acme-challenge",
        /// Penstock answered as a validation server of one-time passwords.
        OtpValidation = "otp-validation",
        /// The client violated the HTTP/2 protocol: its connection was closed.
        Http2Fault = "h2-protocol-error",
        /// The client sent too many small, empty or needless HTTP/2 frames: the connection was closed.
        FrameFlood = "h2-flood",
        /// The heads of all open requests of the connection are too large together.
        HeadsTooLarge = "h2-headers-too-large",
        /// The framing of the request's body is malformed.
        BodyMalformed = "body-malformed",
        /// The body of the request is larger than `limits.body`.
        BodyTooLarge = "body-too-large",
        /// The client did not send its request within the time limit.
        ClientTimeout = "client-timeout",
        /// The client closed its connection.
        ClientClosed = "client-closed",
        /// An access list denies the client.
        Denied = "denied",
        /// An access list denies the client: it was held for the time of `tarpit` of the listener, or until it left.
        Tarpit = "tarpit",
        /// No route matches the request.
        NoRoute = "no-route",
        /// A route depends on the path, and the path is ambiguous.
        AmbiguousPath = "ambiguous-path",
        /// The request has passed through Penstock too often (request loop).
        RequestLoop = "request-loop",
        /// No backend of the pool is available.
        NoBackendAvailable = "no-backend-available",
        /// Every backend is at its session limit, and the queue is full.
        QueueFull = "queue-full",
        /// No backend became free within the time limit.
        QueueTimeout = "queue-timeout",
        /// No connection to a backend could be established.
        ConnectFailed = "connect-failed",
        /// The backend closed the connection before its response, or did not process the request (HTTP/2).
        BackendClosed = "backend-closed",
        /// The backend did not respond within the time limit.
        BackendTimeout = "backend-timeout",
        /// The backend was judged down or ejected while it had the request, and did not respond in time.
        BackendDown = "backend-down",
        /// The backend does not take WebSockets over HTTP/2.
        NoWebSockets = "backend-no-websockets",
        /// The backend's response was not valid HTTP, or it violated HTTP/2.
        BadResponse = "backend-bad-response",
        /// The backend closed the connection in the middle of its response, or stopped to send.
        BackendAborted = "backend-aborted",
        /// No data was transferred for the idle timeout.
        IdleTimeout = "idle-timeout",
        /// The TLS handshake exceeded its time limit.
        TlsTimeout = "tls-timeout",
        /// A required PROXY header was missing or malformed.
        ProxyHeader = "proxy-header",
        /// The client's source connected faster than `connection-rate` allows.
        ConnectionRate = "connection-rate",
        /// The client's source sent requests faster than `request-rate` allows.
        RequestRate = "request-rate",
        /// The client's source has as many connections as `connections-per-source` allows.
        SourceFull = "source-full",
        /// The listener is at its connection limit.
        ListenerFull = "listener-full",
        /// The backend of a UDP flow sent fewer replies than `replies` says, or none; with `replies` also if one was lost and
        /// later ones came.
        NoReply = "no-reply",
        /// A UDP flow whose client had sent nothing after a reply gave its place to a new one.
        FlowEvicted = "flow-evicted",
        /// A datagram has a source to which no reply can be sent: port 0, or the address of one of our own listeners or of a
        /// backend.
        BadSource = "bad-source",
        /// A datagram was not sent: the network or the kernel's buffer did not take it.
        NotSent = "datagram-not-sent",
        /// A packet for a backend of a `dsr` listener was not sent: the network interface is down, or did not take it.
        PacketNotSent = "packet-not-sent",
        /// A packet for a `dsr` listener found no room in the socket: its worker was too slow, or the buffer is too small
        /// (`net.core.rmem_max`). Or the kernel could not hand it on whole: it was larger than 64 KiB, or still to be cut
        /// in a way that packet sockets cannot name.
        PacketLost = "packet-lost",
        /// An operator ended the session.
        Killed = "killed-by-operator",
        /// The session was still open at the drain limit of a stopping process.
        DrainTimeout = "drain-timeout",
        /// The session panicked: a bug in Penstock.
        InternalError = "internal-error",
        ;
        /// The request was ambiguous, malformed or over a limit.
        Refused(HttpRefusal: reason),
        /// The HTTP/2 request was malformed.
        Malformed(Malformed: reason),
        /// The client sent too many frames that transfer no data: its connection was closed.
        Flood(Flood: reason),
        /// The TLS handshake failed.
        TlsFailed(TlsFault: word),
        /// No descriptor was free, or the client connection or its address has used its share.
        NoDescriptors(Refusal: word),
        /// A datagram began no flow, because a limit of flows was reached.
        NoFlow(Refused: word),
        /// A packet for a `dsr` listener was not forwarded.
        Packet(Dropped: word),
    }
}

impl Ending {
    /// Why the last attempt at a backend failed, in general, if the session ended for that.
    pub fn failed_attempt(self) -> Option<Fault> {
        match self {
            Self::ConnectFailed => Some(Fault::Unreachable),
            Self::BackendClosed => Some(Fault::Closed),
            Self::BackendTimeout | Self::NoReply => Some(Fault::Timeout),
            Self::BackendDown => Some(Fault::Down),
            Self::NoWebSockets => Some(Fault::Unsuitable),
            Self::BadResponse => Some(Fault::BadResponse),
            Self::BackendAborted => Some(Fault::Aborted),
            Self::Ok
            | Self::Redirected
            | Self::Responded
            | Self::AcmeChallenge
            | Self::OtpValidation
            | Self::Http2Fault
            | Self::FrameFlood
            | Self::HeadsTooLarge
            | Self::BodyMalformed
            | Self::BodyTooLarge
            | Self::ClientTimeout
            | Self::ClientClosed
            | Self::Denied
            | Self::Tarpit
            | Self::NoRoute
            | Self::AmbiguousPath
            | Self::RequestLoop
            | Self::NoBackendAvailable
            | Self::QueueFull
            | Self::QueueTimeout
            | Self::IdleTimeout
            | Self::TlsTimeout
            | Self::ProxyHeader
            | Self::ConnectionRate
            | Self::RequestRate
            | Self::SourceFull
            | Self::ListenerFull
            | Self::FlowEvicted
            | Self::BadSource
            | Self::NotSent
            | Self::PacketNotSent
            | Self::PacketLost
            | Self::Killed
            | Self::DrainTimeout
            | Self::InternalError
            | Self::Refused(_)
            | Self::Malformed(_)
            | Self::Flood(_)
            | Self::TlsFailed(_)
            | Self::NoDescriptors(_)
            | Self::NoFlow(_)
            | Self::Packet(_) => None,
        }
    }

    /// Reports whether the session had a fault; penstock's own answers that the configuration asks for are none.
    pub fn is_fault(self) -> bool {
        !matches!(
            self,
            Self::Ok | Self::Redirected | Self::Responded | Self::AcmeChallenge | Self::OtpValidation
        )
    }
}

text::meanings! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TlsFault {
        /// The client did not send TLS; usually plain HTTP.
        NotTls = "tls-not-tls",
        /// No certificate for the server name, or the client sent no server name.
        NoCertificate = "tls-no-certificate",
        /// The client offers no supported version or cipher.
        Incompatible = "tls-incompatible",
        /// The client sent an alert; usually it does not trust the certificate.
        Alert = "tls-client-alert",
        /// The client closed the connection during the handshake.
        Closed = "tls-closed",
        /// Any other protocol error.
        Protocol = "tls-failed",
        /// The handshake was closed because too many others began.
        TooManyHandshakes = "tls-too-many-handshakes",
        ;
        /// The client's certificate is invalid or missing.
        Client(ClientFault: word),
    }
}

text::meanings! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ClientFault {
        /// The client sent no certificate.
        Missing = "client-certificate-missing",
        /// The certificate is malformed or has an unknown critical extension.
        Malformed = "client-certificate-malformed",
        /// The certificate is not issued by a trusted CA.
        UnknownAuthority = "client-certificate-unknown-ca",
        /// The certificate has expired.
        Expired = "client-certificate-expired",
        /// The certificate is not valid yet.
        NotYetValid = "client-certificate-not-yet-valid",
        /// A CRL lists the certificate.
        Revoked = "client-certificate-revoked",
        /// No CRL covers the certificate.
        CrlMissing = "client-certificate-crl-missing",
        /// The CRL for the certificate is expired.
        CrlExpired = "client-certificate-crl-expired",
        /// None of the certificate's names is allowed.
        Name = "client-certificate-name",
        /// The certificate is not for clients, or is a CA certificate.
        Purpose = "client-certificate-purpose",
        /// A signature is wrong, or its algorithm is not accepted.
        Signature = "client-certificate-signature",
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
