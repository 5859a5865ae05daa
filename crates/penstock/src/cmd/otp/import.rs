//! `penstock otp import`.

use std::path::PathBuf;

use access::otp::import::{By, Entry, Format, read};
use access::otp::ledger::{Ledger, Record};
use access::otp::token::{Kind, Last, Moved, Standing, Token};
use clap::Args;
use credentials::{Store, random};

use super::change::failed;
use super::input;
use crate::output::{Failure, complain, plain, print};

/// Import tokens of other programs
///
/// ksm: keys of a YK-KSM (ykksm-export, ykksm-gen-keys), or the log of the YubiKey Personalization Tool. ykval: what a YK-VAL
/// accepted last of these keys (ykval-export): import it too, else old OTPs are good once more. oath: users.oath of pam_oath.
/// All that can be read is imported, the rest is told with its line, and the exit code is then 1.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// What wrote the file: ksm, ykval or oath
    format: Format,
    /// The file; - is standard input
    file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  gpg --decrypt keys.gpg | penstock otp import ksm -
  penstock otp import ykval ykval-export.csv
  penstock otp import oath /etc/users.oath";

pub(super) fn run(store: &mut Store, arguments: &Arguments) -> Result<(), Failure> {
    let text = input::file(&arguments.file)?;
    let (entries, mut faults) = read(arguments.format, &text);
    let mut nonces = Vec::new();
    for _ in &entries {
        nonces.push(random().map_err(Failure::runtime)?);
    }
    // One write for all.
    let done = store.run_one(move |ledger, now| {
        let (mut records, mut wrong, mut count) = (Vec::new(), Vec::new(), 0);
        for ((line, entry), nonce) in entries.into_iter().zip(nonces) {
            match take(ledger, entry, nonce, now / 1000) {
                Ok(taken) => {
                    records.extend(taken);
                    count += 1;
                }
                Err(why) => wrong.push(access::otp::import::Fault { line, why }),
            }
        }
        ((count, wrong), records)
    });
    let (count, wrong) = done.map_err(failed)?;
    faults.extend(wrong);
    faults.sort_by_key(|fault| fault.line);
    let file = plain(&arguments.file.display().to_string());
    for fault in &faults {
        complain(&format!("error: {file}: {}\n", plain(&fault.to_string())));
    }
    print(&format!("imported {count} of {} lines\n", count + faults.len()))?;
    if faults.is_empty() { Ok(()) } else { Err(Failure::Status(1)) }
}

fn take(ledger: &mut Ledger, entry: Entry, nonce: [u8; 12], now: u64) -> Result<Vec<Record>, String> {
    let records = match entry {
        Entry::Key { name, secret } => {
            let sealed = ledger.key().seal(&name, &secret.bytes(), nonce);
            let token = Token::new(name, None, Kind::Yubico { last: None }, sealed, now);
            vec![ledger.enrol(&token).map_err(|why| why.to_string())?]
        }
        Entry::Counters { name, session, press, timestamp, nonce, active } => {
            let last = Last { session, press, timestamp, nonce };
            if ledger.token(&name).is_none() {
                return Err(format!(
                    "there is no token {name}: import its key first (penstock otp import ksm)"
                ));
            }
            let mut records = vec![Record::Used { id: name.clone(), moved: Moved::Pressed(last), at: now }];
            if !active {
                records.push(Record::Standing { id: name, now: Standing::Revoked });
            }
            records
        }
        Entry::Code { owner, form, by, secret } => {
            let kind = match by {
                By::Counter(next) => Kind::Hotp { form, next },
                // The code that was used there last may still be the present one.
                By::Time(period) => Kind::Totp { form, period, last: Some(now / period.max(1)), drift: 0 },
            };
            let name = format!("{owner}-{}", kind.word());
            let sealed = ledger.key().seal(&name, secret.bytes(), nonce);
            let token = Token::new(name, Some(owner), kind, sealed, now);
            vec![ledger.enrol(&token).map_err(|why| why.to_string())?]
        }
    };
    for record in &records {
        ledger.take(record.clone())?;
    }
    Ok(records)
}
