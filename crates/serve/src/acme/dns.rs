//! Records of the challenge dns-01 (RFC 8555 section 8.4): added and removed with signed updates (RFC 2136, RFC 8945).
//!
//! A process that is killed during an order leaves its record in the zone. It proves nothing later: the next order has another value.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::types::DnsUpdates;
use dns::{SignedFault, SignedServer};
use hickory_proto::op::update_message::{append, delete_by_rdata};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::{Name, RData, Record, RecordSet, RecordType};
use logic::tsig_key::TsigKey;
use state::account::{Account, OF_REQUEST, Purpose};
use sys::file;

use super::fault::Fault;
use super::kept::on_disk;

/// Time limit of one question with its answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Largest file with a key in bytes.
const LARGEST: u64 = 64 * 1024;

/// Time that other name servers may remember the record, in seconds.
const TTL: u32 = 60;

/// Longest chain of CNAME records that is followed.
const MOST_ALIASES: usize = 8;

/// The name server of a section.
pub(super) struct NameServer {
    server: SignedServer,
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
        let server = signed_server(settings.server, &settings.key_file, "dns.key-file").await?;
        Ok(Self { server, account })
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
            | ResponseCode::NotAuth => Ok(answer),
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

    async fn transfer(&self, doing: &'static str, message: Message) -> Result<Message, Fault> {
        let _turn = self.account.turn(Purpose::Authority, OF_REQUEST).await;
        self.server.transfer(message, LIMIT).await.map_err(|fault| match fault {
            SignedFault::Io(_) | SignedFault::TimedOut(_) => {
                Fault::DnsUnavailable { server: self.server.address(), doing, why: fault.to_string() }
            }
            _ => self.fault(doing, fault.to_string()),
        })
    }

    fn refusal(&self, doing: &'static str, answer: &Message) -> Fault {
        let why = match answer.metadata.response_code {
            ResponseCode::Refused => {
                "it refuses: allow this key to update the TXT records of _acme-challenge in the zone"
                    .to_owned()
            }
            code => format!("it answers {code}"),
        };
        self.fault(doing, why)
    }

    fn fault(&self, doing: &'static str, why: String) -> Fault {
        Fault::Dns { server: self.server.address(), doing, why }
    }
}

/// A server with the key in a file that other users cannot read. `setting` is the key of the configuration that names the
/// file.
pub(super) async fn signed_server(
    server: SocketAddr,
    key_file: &Path,
    setting: &'static str,
) -> Result<SignedServer, Fault> {
    let path = key_file.to_owned();
    let key = on_disk(move || {
        let text = file::read_secret(&path, LARGEST);
        let text = text.map_err(|source| Fault::File { path: path.clone(), what: "read", source })?;
        TsigKey::parse(&String::from_utf8_lossy(&text))
            .map_err(|fault| Fault::Setting { key: setting, why: format!("{}: {fault}", path.display()) })
    });
    SignedServer::new(server, key.await?).map_err(|why| Fault::Setting { key: setting, why })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use logic::acme::OrderFailure;

    use super::*;

    #[tokio::test]
    async fn a_name_server_that_cannot_be_reached_is_asked_again_soon() {
        let directory = tempfile::tempdir().unwrap();
        let key_file = directory.path().join("key");
        let text = "key \"acme.\" { algorithm hmac-sha256; secret \"c2VjcmV0IHNlY3JldCBzZWNyZXQ=\"; };\n";
        std::fs::write(&key_file, text).unwrap();
        std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        drop(listener);
        let settings = DnsUpdates { server, key_file: key_file.clone(), wait: Duration::ZERO };
        let refused = NameServer::open(&settings, Account::new(1)).await.err().unwrap().to_string();
        assert!(refused.contains("other users can use the secret in it (mode 0644)"), "{refused}");
        std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let records = NameServer::open(&settings, Account::new(1)).await.unwrap();
        let fault = match records.place("a.example", "value".to_owned()).await {
            Err(fault) => fault,
            Ok(_) => panic!("no server listens"),
        };
        assert!(fault.to_string().starts_with(&format!("the name server {server} does not find the zone: ")));
        assert_eq!(fault.setback(), OrderFailure::Unavailable);
        let answered = records.fault("add the record", "it refuses".to_owned());
        assert_eq!(answered.setback(), OrderFailure::Refused);
    }

    #[test]
    fn a_full_disk_is_tried_again_soon_unless_a_certificate_was_lost() {
        let full = || Fault::File {
            path: "/x".into(),
            what: "written",
            source: std::io::ErrorKind::StorageFull.into(),
        };
        assert_eq!(full().setback(), OrderFailure::Unavailable);
        assert_eq!(full().not_installed().setback(), OrderFailure::Refused);
    }
}
