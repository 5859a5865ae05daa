//! What set-ups of this machine have changed: a file for each address, such as `/var/lib/penstock/backend-192.0.2.10.json`.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use logic::dsr::backend_host::persist::{self, Persist, files};
use logic::dsr::backend_host::settings::usual;
use logic::dsr::backend_host::undo::{self, Before, Record};
use logic::dsr::backend_host::{ALL, VipText};
use serde::{Deserialize, Serialize};

use super::machine::HostError;

/// All records of a directory, which no other process uses at the same time.
pub(super) struct Records {
    directory: PathBuf,
    all: Vec<Record>,
    /// Closing it lets others in.
    _lock: File,
}

impl Records {
    pub(super) fn open(directory: &Path) -> Result<Self, HostError> {
        let wrong = |error| HostError::Write(directory.to_owned(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(wrong)?;
        let lock = directory.join("backend.lock");
        // The directory itself may be locked by `penstock serve` as long as it runs.
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&lock);
        let file = file.map_err(|error| HostError::Write(lock.clone(), error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(HostError::Busy(directory.to_owned())),
            Err(TryLockError::Error(error)) => return Err(HostError::Write(lock, error)),
        }
        let mut all = Vec::new();
        let names =
            sys::file::names(directory).map_err(|error| HostError::Read(directory.to_owned(), error))?;
        for name in names {
            if let Some(ip) = name.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END)) {
                all.push(read(&directory.join(&name), ip)?);
            }
        }
        Ok(Self { directory: directory.to_owned(), all, _lock: file })
    }

    pub(super) fn existing(&self, ip: IpAddr) -> Option<&Record> {
        self.all.iter().find(|record| record.ip == ip)
    }

    pub(super) fn others(&self, ip: IpAddr) -> impl Iterator<Item = &Record> {
        self.all.iter().filter(move |record| record.ip != ip)
    }

    /// The record of an address, which begins now if there is none.
    pub(super) fn of(&mut self, ip: IpAddr) -> &mut Record {
        let at = self.all.iter().position(|record| record.ip == ip).unwrap_or_else(|| {
            self.all.push(Record::new(ip));
            self.all.len() - 1
        });
        &mut self.all[at]
    }

    /// Stores the record of an address; one that says nothing has no file.
    pub(super) fn save(&self, ip: IpAddr) -> Result<(), HostError> {
        match self.existing(ip) {
            Some(record) if *record != Record::new(ip) => self.store(record),
            _ => self.forget(ip),
        }
    }

    /// Stores the record of an address that has been set up, also one that says nothing: the settings of others stay for it.
    pub(super) fn keep(&mut self, ip: IpAddr) -> Result<(), HostError> {
        self.of(ip);
        self.existing(ip).map_or(Ok(()), |record| self.store(record))
    }

    fn store(&self, record: &Record) -> Result<(), HostError> {
        let ip = record.ip;
        let path = path(&self.directory, ip);
        let stored = serde_json::to_vec_pretty(&Stored::new(record)).map_err(io::Error::other);
        stored
            .and_then(|bytes| state::state_directory::write(&path, &bytes))
            .map_err(|error| HostError::Write(path, error))
    }

    pub(super) fn forget(&self, ip: IpAddr) -> Result<(), HostError> {
        let path = path(&self.directory, ip);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(HostError::Write(path, error)),
            _ => Ok(()),
        }
    }
}

pub(super) fn path(directory: &Path, ip: IpAddr) -> PathBuf {
    directory.join(format!("{BEGIN}{ip}{END}"))
}

const BEGIN: &str = "backend-";
const END: &str = ".json";

/// Longest record: a few files of a few hundred bytes.
const LONGEST: u64 = 1 << 20;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    vip: IpAddr,
    /// Whether the address was there before.
    address_before: Presence,
    settings: Vec<Setting>,
    files: Vec<Written>,
    #[serde(default)]
    tunnel: TunnelChanges,
}

#[derive(Serialize, Deserialize, Default)]
struct TunnelChanges {
    table_made: bool,
    device_up: bool,
}

#[derive(Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Presence {
    Present,
    Absent,
}

#[derive(Serialize, Deserialize)]
struct Setting {
    interface: String,
    setting: String,
    before: u32,
    set: u32,
}

#[derive(Serialize, Deserialize)]
struct Written {
    path: String,
    text: String,
}

impl Stored {
    fn new(record: &Record) -> Self {
        let setting = |changed: &undo::Changed| Setting {
            interface: changed.set.conf.clone(),
            setting: changed.set.key.to_string(),
            before: changed.from,
            set: changed.set.to,
        };
        let written = |file: &persist::File| Written { path: file.path.clone(), text: file.text.clone() };
        Self {
            version: VERSION,
            vip: record.ip,
            address_before: match record.address {
                Before::Present => Presence::Present,
                Before::Absent => Presence::Absent,
            },
            settings: record.settings.iter().map(setting).collect(),
            files: record.files.iter().map(written).collect(),
            tunnel: TunnelChanges {
                table_made: record.tunnel.has_table,
                device_up: record.tunnel.has_device,
            },
        }
    }

    /// Only what a set-up writes is taken for a record: it says what root is to change back.
    fn record(self, ip: IpAddr) -> Result<Record, String> {
        if self.version != VERSION {
            return Err(format!("its version is {}, and this penstock knows {VERSION}", self.version));
        }
        if self.vip != ip {
            return Err(format!("it is about {}", self.vip));
        }
        let settings = self.settings.iter().map(|one| {
            undo::changed(&one.interface, &one.setting, one.before, one.set)
                .ok_or_else(|| format!("there is no setting {} of {}", one.setting, one.interface))
        });
        let known: Vec<_> =
            Persist::ALL.iter().flat_map(|persist| files(*persist, ip, &usual(ALL))).collect();
        let of = |written: Written| match known.iter().find(|file| file.path == written.path) {
            Some(file) => Ok(persist::File { text: written.text, ..file.clone() }),
            None => Err(format!("no set-up writes {}", written.path)),
        };
        Ok(Record {
            ip,
            address: match self.address_before {
                Presence::Present => Before::Present,
                Presence::Absent => Before::Absent,
            },
            settings: settings.collect::<Result<_, _>>()?,
            files: self.files.into_iter().map(of).collect::<Result<_, _>>()?,
            tunnel: undo::Tunnel { has_table: self.tunnel.table_made, has_device: self.tunnel.device_up },
        })
    }
}

fn read(path: &Path, ip: &str) -> Result<Record, HostError> {
    let damaged = |why: String| HostError::Damaged(path.to_owned(), why);
    let ip = ip.parse::<VipText>().map_err(|error| damaged(error.to_string()))?.ip;
    let bytes = sys::file::read(path, LONGEST).map_err(|error| HostError::Read(path.to_owned(), error))?;
    let stored: Stored = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    stored.record(ip).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(ip: IpAddr) -> Record {
        let files = files(Persist::SystemdNetworkd, ip, &usual(ALL));
        let changed = undo::changed("eth0.7", "arp_ignore", 0, 1).unwrap();
        Record {
            ip,
            address: Before::Absent,
            settings: vec![changed],
            files,
            tunnel: undo::Tunnel { has_table: true, has_device: false },
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_one_at_a_time_uses_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        for text in ["192.0.2.10", "2001:db8::10"] {
            let ip = text.parse().unwrap();
            let mut records = Records::open(directory.path()).unwrap();
            assert!(matches!(Records::open(directory.path()), Err(HostError::Busy(_))));
            *records.of(ip) = example(ip);
            records.save(ip).unwrap();
            drop(records);
            let records = Records::open(directory.path()).unwrap();
            assert_eq!(records.existing(ip), Some(&example(ip)));
        }
    }

    #[test]
    fn a_record_that_names_anything_else_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let ip = "192.0.2.10".parse().unwrap();
        let path = directory.path().join("backend-192.0.2.10.json");
        let good = serde_json::to_string(&Stored::new(&example(ip))).unwrap();
        for (from, to, why) in [
            ("eth0.7", "../../../tmp", "there is no setting"),
            ("arp_ignore\"", "forwarding\"", "there is no setting"),
            ("/etc/sysctl.d/60", "/etc/shadow", "no set-up writes /etc/shadow"),
            ("\"version\":1", "\"version\":2", "its version is 2"),
            ("\"vip\":\"192.0.2.10\"", "\"vip\":\"192.0.2.11\"", "it is about 192.0.2.11"),
            ("{", "", "expected"),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{from}");
            fs::write(&path, text).unwrap();
            let Err(error) = Records::open(directory.path()) else { panic!("{to} was read") };
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
