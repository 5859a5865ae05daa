//! Records of the challenge dns-01 (RFC 8555 section 8.4): added and removed with signed updates (RFC 2136, RFC 8945).
//!
//! A process that is killed during an order leaves its record in the zone. It proves nothing later: the next order has another value.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::types::DnsUpdates;
use hickory_proto::op::update_message::{append, delete_by_rdata};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::rdata::tsig::{TsigAlgorithm, TsigError};
use hickory_proto::rr::{Name, RData, Record, RecordSet, RecordType, TSigner};
use logic::tsig_key::{Algorithm, TsigKey};
use state::account::{Account, OF_REQUEST, Purpose};
use sys::file;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fault::Fault;
use super::kept::on_disk;

/// Time limit of one question with its answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Largest file with a key in bytes.
const LARGEST: u64 = 64 * 1024;

/// Time that other name servers may remember the record, in seconds.
const TTL: u32 = 60;

/// Largest difference between the clocks of both sides in seconds, as RFC 8945 section 10 recommends.
const FUDGE: u16 = 300;

/// Longest chain of CNAME records that is followed.
const MOST_ALIASES: usize = 8;

/// The name server of a section.
pub(super) struct NameServer {
    server: SocketAddr,
    signer: TSigner,
    account: Arc<Account>,
}

/// A record with its zone.
#[derive(Clone)]
pub(super) struct Update {
    zone: Name,
    record: Record,
}

impl NameServer {
    /// Reads the key.
    pub(super) async fn open(settings: &DnsUpdates, account: Arc<Account>) -> Result<Self, Fault> {
        let path = settings.key_file.clone();
        let key = on_disk(move || {
            let text = file::read(&path, LARGEST);
            let text = text.map_err(|source| Fault::File { path: path.clone(), what: "read", source })?;
            let text = String::from_utf8_lossy(&text).into_owned();
            TsigKey::parse(&text).map_err(|fault| Fault::Setting {
                key: "dns.key-file",
                why: format!("{}: {fault}", path.display()),
            })
        });
        let TsigKey { name, algorithm, secret } = key.await?;
        let setting = |why: String| Fault::Setting { key: "dns.key-file", why };
        let name =
            Name::from_ascii(&name).map_err(|error| setting(format!("the name of the key: {error}")))?;
        let algorithm = match algorithm {
            Algorithm::HmacSha256 => TsigAlgorithm::HmacSha256,
            Algorithm::HmacSha384 => TsigAlgorithm::HmacSha384,
            Algorithm::HmacSha512 => TsigAlgorithm::HmacSha512,
        };
        let signer =
            TSigner::new(secret, algorithm, name, FUDGE).map_err(|error| setting(error.to_string()))?;
        Ok(Self { server: settings.server, signer, account })
    }

    /// Finds the zone of the record that proves control of a name.
    pub(super) async fn place(&self, name: &str, value: String) -> Result<Update, Fault> {
        let owner = format!("_acme-challenge.{}.", name.trim_start_matches("*."));
        let owner =
            Name::from_ascii(&owner).map_err(|error| self.fault("find the zone", error.to_string()))?;
        let owner = self.follow_aliases(owner).await?;
        let zone = self.zone_of(&owner).await?;
        Ok(Update { zone, record: Record::from_rdata(owner, TTL, RData::TXT(TXT::new(vec![value]))) })
    }

    pub(super) async fn add(&self, Update { zone, record }: &Update) -> Result<(), Fault> {
        let update = append(RecordSet::from(record.clone()), zone.clone(), false, false);
        self.exchange("add the record", update).await.map(|_| ())
    }

    pub(super) async fn remove(&self, Update { zone, record }: &Update) -> Result<(), Fault> {
        let update = delete_by_rdata(RecordSet::from(record.clone()), zone.clone(), false);
        self.exchange("remove the record", update).await.map(|_| ())
    }

    /// Returns the name at which an authority finds the record: it follows CNAME records.
    async fn follow_aliases(&self, owner: Name) -> Result<Name, Fault> {
        let mut owner = owner;
        for _ in 0..MOST_ALIASES {
            let answer = self.query(&owner, RecordType::TXT).await?;
            let alias = answer.answers.iter().find_map(|record| match &record.data {
                RData::CNAME(target) if record.name == owner => Some(target.0.clone()),
                _ => None,
            });
            match alias {
                Some(target) => owner = target,
                None => return Ok(owner),
            }
        }
        Err(self
            .fault("find the zone", format!("more than {MOST_ALIASES} CNAME records lead from name to name")))
    }

    /// Finds the zone of a name: the nearest name above it for which the server has an SOA record.
    async fn zone_of(&self, owner: &Name) -> Result<Name, Fault> {
        let mut zone = owner.clone();
        while !zone.is_root() {
            let answer = self.query(&zone, RecordType::SOA).await?;
            let is_soa = |record: &Record| record.record_type() == RecordType::SOA && record.name == zone;
            if answer.metadata.authoritative && answer.answers.iter().any(is_soa) {
                return Ok(zone);
            }
            zone = zone.base_name();
        }
        Err(self.fault("find the zone", format!("it is not authoritative for {owner} or a name above it")))
    }

    /// Asks for records. A refusal is an answer: the server may have no zone for this name.
    async fn query(&self, name: &Name, kind: RecordType) -> Result<Message, Fault> {
        let mut message = Message::query();
        message.add_query(Query::query(name.clone(), kind));
        let answer = self.transfer("find the zone", message).await?;
        match answer.metadata.response_code {
            ResponseCode::NoError
            | ResponseCode::NXDomain
            | ResponseCode::Refused
            | ResponseCode::NotAuth
                if key_fault(&answer).is_none() =>
            {
                Ok(answer)
            }
            _ => Err(self.refusal("find the zone", &answer)),
        }
    }

    async fn exchange(&self, doing: &'static str, message: Message) -> Result<Message, Fault> {
        let answer = self.transfer(doing, message).await?;
        match answer.metadata.response_code {
            ResponseCode::NoError => Ok(answer),
            _ => Err(self.refusal(doing, &answer)),
        }
    }

    /// Signs and sends a message. An answer that says success has a good signature; a refusal may have none (RFC 8945 section
    /// 5.3.2).
    async fn transfer(&self, doing: &'static str, mut message: Message) -> Result<Message, Fault> {
        let broken = |why: String| self.fault(doing, why);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let verifier = message.finalize(&self.signer, now).map_err(|error| broken(error.to_string()))?;
        let bytes = message.to_vec().map_err(|error| broken(error.to_string()))?;
        let _turn = self.account.turn(Purpose::Authority, OF_REQUEST).await;
        let answer = match tokio::time::timeout(LIMIT, self.send(&bytes)).await {
            Ok(answer) => answer.map_err(|error| broken(error.to_string()))?,
            Err(_) => return Err(broken(format!("no answer within {} s", LIMIT.as_secs()))),
        };
        let parsed = Message::from_vec(&answer)
            .map_err(|error| broken(format!("its answer is malformed: {error}")))?;
        if parsed.metadata.id != message.metadata.id {
            return Err(broken("its answer is for another question".to_owned()));
        }
        let verified = verifier.map(|mut verifier| verifier.verify(&answer));
        match (verified, parsed.metadata.response_code) {
            (Some(Err(error)), ResponseCode::NoError) => {
                Err(broken(format!("its answer is not signed with the key: {error}")))
            }
            _ => Ok(parsed),
        }
    }

    async fn send(&self, message: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.server).await?;
        let length = u16::try_from(message.len()).map_err(std::io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes(), message].concat()).await?;
        let length = stream.read_u16().await?;
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    fn refusal(&self, doing: &'static str, answer: &Message) -> Fault {
        let why = match (key_fault(answer), answer.metadata.response_code) {
            (Some(why), _) => why.to_owned(),
            (None, ResponseCode::Refused) => {
                "it refuses: allow this key to update the TXT records of _acme-challenge in the zone"
                    .to_owned()
            }
            (None, code) => format!("it answers {code}"),
        };
        self.fault(doing, why)
    }

    fn fault(&self, doing: &'static str, why: String) -> Fault {
        Fault::Dns { server: self.server, doing, why }
    }
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
