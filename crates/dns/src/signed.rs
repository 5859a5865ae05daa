//! Messages to a server, signed with a key that both share (TSIG, RFC 8945), over TCP.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::tsig::{TsigAlgorithm, TsigError};
use hickory_proto::rr::{Name, TSigner};
use logic::tsig_key::{Algorithm, TsigKey};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Largest difference between the clocks of both sides in seconds, as RFC 8945 section 10 recommends.
const FUDGE: u16 = 300;

/// A server that takes messages signed with a key.
#[derive(Clone)]
pub struct SignedServer {
    address: SocketAddr,
    signer: TSigner,
}

/// Reason why there is no answer that counts.
#[derive(Debug, Error)]
pub enum SignedFault {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the message cannot be made: {0}")]
    Message(String),
    #[error("its answer is malformed: {0}")]
    Malformed(String),
    #[error("its answer is for another question")]
    OtherQuestion,
    /// A machine on the path may have made the answer.
    #[error("its answer is not signed with the key: {0}")]
    Unsigned(String),
    /// What the server says of our signature (RFC 8945 section 5.2).
    #[error("{0}")]
    Key(&'static str),
}

impl SignedServer {
    /// # Errors
    /// The name of the key is not a name, or its secret cannot be used.
    pub fn new(address: SocketAddr, key: TsigKey) -> Result<Self, String> {
        let TsigKey { name, algorithm, secret } = key;
        let name = Name::from_ascii(&name).map_err(|error| format!("the name of the key: {error}"))?;
        let algorithm = match algorithm {
            Algorithm::HmacSha256 => TsigAlgorithm::HmacSha256,
            Algorithm::HmacSha384 => TsigAlgorithm::HmacSha384,
            Algorithm::HmacSha512 => TsigAlgorithm::HmacSha512,
        };
        let signer = TSigner::new(secret, algorithm, name, FUDGE).map_err(|error| error.to_string())?;
        Ok(Self { address, signer })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Signs and sends a message. What an answer says has a good signature, also that there is no such name. Of a refusal without
    /// one (RFC 8945 section 5.3.2) no more than its code counts.
    ///
    /// # Errors
    /// There is no answer in time, or none that counts.
    pub async fn transfer(&self, mut message: Message, limit: Duration) -> Result<Message, SignedFault> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let not_made = |error: &dyn std::fmt::Display| SignedFault::Message(error.to_string());
        let verifier = message.finalize(&self.signer, now).map_err(|error| not_made(&error))?;
        let bytes = message.to_vec().map_err(|error| not_made(&error))?;
        let sent = tokio::time::timeout(limit, send(self.address, &bytes)).await;
        let answer = sent.map_err(|_| SignedFault::TimedOut(limit))??;
        let mut parsed =
            Message::from_vec(&answer).map_err(|error| SignedFault::Malformed(error.to_string()))?;
        if parsed.metadata.id != message.metadata.id {
            return Err(SignedFault::OtherQuestion);
        }
        if let Some(fault) = key_fault(&parsed) {
            return Err(SignedFault::Key(fault));
        }
        let verified = match verifier {
            Some(mut verifier) => verifier.verify(&answer).map(drop).map_err(|error| error.to_string()),
            None => Err("the message had no signature".to_owned()),
        };
        match verified {
            Ok(()) => Ok(parsed),
            Err(_) if is_refusal(parsed.metadata.response_code) => {
                parsed.metadata.authoritative = false;
                parsed.answers.clear();
                Ok(parsed)
            }
            Err(why) => Err(SignedFault::Unsigned(why)),
        }
    }
}

/// Sends a message over TCP and reads one answer (RFC 1035 section 4.2.2).
pub(crate) async fn send(server: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Whether an answer says no more than that the server does not do what it was asked. Other codes say what is in the zone.
fn is_refusal(code: ResponseCode) -> bool {
    use ResponseCode as Code;
    matches!(
        code,
        Code::FormErr | Code::ServFail | Code::NotImp | Code::Refused | Code::NotAuth | Code::NotZone
    )
}

/// What the server says of our signature (RFC 8945 section 5.2).
fn key_fault(answer: &Message) -> Option<&'static str> {
    match answer.signature.as_ref()?.data.error.as_ref()? {
        TsigError::BadKey => Some(
            "it does not know the key, or gives it no right to update this zone: compare its name and algorithm",
        ),
        TsigError::BadSig => Some("our signature is wrong for it: compare the secret"),
        TsigError::BadTime => Some("its clock and ours differ by more than 5 minutes"),
        TsigError::BadTrunc | TsigError::Unknown(_) => Some("it does not accept our signature"),
    }
}
