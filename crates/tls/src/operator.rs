//! The handshake of an operator who controls this process over the network: in the end it gives what a log-in can be bound to.

use tokio_rustls::server::TlsStream;

use super::plain::Plain;
use super::{Refused, Terminator, shake_hands};
use state::ending::{Ending, TlsFault};

/// A connection after its handshake.
pub struct Established {
    pub stream: Box<TlsStream<Plain>>,
    /// Common name in the certificate of the client, if it has sent one that is trusted.
    pub name: Option<String>,
    /// Channel bindings of the type tls-exporter (RFC 9266). Of TLS 1.3 only: earlier versions have them under conditions that
    /// rustls does not tell.
    pub exporter: Option<[u8; 32]>,
}

/// Label of the exporter (RFC 9266 section 2).
pub(crate) const LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// Performs the handshake. Bytes that the client sent before it are not part of it.
pub async fn accept(terminator: &Terminator, plain: Plain) -> Result<Established, Refused> {
    let accepting = async {
        let mut place = terminator.handshakes.begin();
        tokio::select! {
            biased;
            done = shake_hands(terminator, plain, &[]) => done,
            () = place.needed() => Err(TlsFault::TooManyHandshakes.into()),
        }
    };
    match tokio::time::timeout(terminator.handshake_timeout, accepting).await {
        Ok(Ok((stream, identity))) => {
            let connection = stream.get_ref().1;
            let is_new = connection.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3);
            let exported = connection.export_keying_material([0; 32], LABEL, Some(b""));
            let exporter = exported.ok().filter(|_| is_new);
            let name = identity.and_then(|identity| identity.common_name).map(String::from);
            Ok(Established { stream: Box::new(stream), name, exporter })
        }
        Ok(Err(failed)) => Err(failed.part().await),
        Err(_) => Err(Ending::TlsTimeout.into()),
    }
}
