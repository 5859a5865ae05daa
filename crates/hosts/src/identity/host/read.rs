//! Parser of the file of a host. Strict: a wrong line with a known keyword makes the whole file invalid.

use std::net::IpAddr;

use super::{Address, Binding, Entry, HostFile, Line, Move, PINS_KEPT, Pin, Signer, Sshfp};
use crate::identity::date::Date;
use crate::identity::line::{Fault, whole_lines, words};
use crate::identity::location::dns_name;
use crate::identity::name::Name;
use crate::identity::pattern::Patterns;
use crate::identity::proof::is_word;
use crate::ssh::key::{Fingerprint, PublicKey};

pub(super) fn read(name: &Name, text: &str) -> Result<HostFile, Vec<Fault>> {
    let lines = whole_lines(text).map_err(|fault| vec![fault])?;
    let mut faults = Vec::new();
    let mut read = Vec::with_capacity(lines.len());
    for (at, text) in lines.iter().enumerate() {
        match entry(&words(text)) {
            Ok(entry) => read.push(Line { text: (*text).to_owned(), entry }),
            Err(message) => faults.push(Fault { line: at + 1, message }),
        }
    }
    faults.extend(of_the_whole(name, &read, faults.len()));
    if faults.is_empty() { Ok(HostFile { name: name.clone(), lines: read }) } else { Err(faults) }
}

/// Checks the lines together: one `id` with the name of the file, no key twice, at most [`PINS_KEPT`] pins.
fn of_the_whole(name: &Name, lines: &[Line], faults_before: usize) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut ids = 0;
    let mut pins: Vec<&PublicKey> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let mut fault = |message| faults.push(Fault { line: at + 1, message });
        match &line.entry {
            Some(Entry::Id(id)) => {
                ids += 1;
                if id != name {
                    fault(format!("the file is that of {name}, but says id {id}: rename one of them"));
                } else if ids == 2 {
                    fault("a second id: remove one of the lines".into());
                }
            }
            Some(Entry::Pin(pin)) if pins.contains(&&pin.key) => {
                fault("this key is pinned twice: remove one of the lines".into());
            }
            Some(Entry::Pin(pin)) => pins.push(&pin.key),
            _ => {}
        }
    }
    if ids == 0 && faults_before == 0 {
        faults.push(Fault {
            line: 0,
            message: format!("there is no line \"id {name}\": add it, or restore the file"),
        });
    }
    if pins.len() > PINS_KEPT {
        let message = format!("{} pins, but at most {PINS_KEPT} are allowed: retire old ones", pins.len());
        faults.push(Fault { line: 0, message });
    }
    faults
}

fn entry(words: &[&str]) -> Result<Option<Entry>, String> {
    let Some((keyword, rest)) = words.split_first() else { return Ok(None) };
    Ok(Some(match *keyword {
        "id" => match rest {
            [id] => Entry::Id(id.parse().map_err(|error| format!("{error}"))?),
            _ => return Err("id takes one name".into()),
        },
        "alias" => Entry::Alias(aliases(rest)?),
        "addr" => Entry::Address(address(rest)?),
        "pin" => Entry::Pin(pin(rest)?),
        "ca" => Entry::Signer(signer(rest)?),
        "sshfp" => Entry::Sshfp(match rest {
            ["require-secure"] => Sshfp::RequireSecure,
            ["off"] => Sshfp::Off,
            _ => return Err("sshfp is require-secure or off".into()),
        }),
        "seen" => Entry::Seen(seen(rest)?),
        "revoked" => {
            let (key, rest) = key(rest)?;
            Entry::Revoked(key, rest.first().map(|word| date(word)).transpose()?)
        }
        "retired" => match rest {
            [day] => Entry::RetiredHost(date(day)?),
            _ => {
                let (key, rest) = key(rest)?;
                let day =
                    rest.first().ok_or("a retired key needs the date: retired KEY SHA256:… 2026-11-20")?;
                Entry::RetiredKey(key, date(day)?)
            }
        },
        _ => return Ok(None),
    }))
}

fn aliases(words: &[&str]) -> Result<Vec<Name>, String> {
    if words.is_empty() {
        return Err("alias needs at least one name".into());
    }
    words.iter().map(|word| word.parse().map_err(|error| format!("{error}"))).collect()
}

pub(in crate::identity) fn address(words: &[&str]) -> Result<Address, String> {
    let mut all = Address::default();
    for word in words {
        if let Some(name) = word.strip_prefix("dns:") {
            let hint = "write the port beside it, as port=N";
            all.names.push(dns_name(name).map_err(|error| format!("{word}: {error}; {hint}"))?);
        } else if let Some(port) = word.strip_prefix("port=") {
            let port = port.parse().ok().filter(|port| *port != 0);
            all.port = Some(port.ok_or_else(|| format!("{word}: a port is a number from 1 to 65535"))?);
        } else if let Some(via) = word.strip_prefix("via=") {
            all.via = Some(via.parse().map_err(|error| format!("{error}"))?);
        } else {
            let address = word.parse::<IpAddr>();
            let hint = || {
                format!(
                    "\"{word}\" is not an address: 10.0.7.9, 2001:db8::9, dns:NAME, port=N or via=HOST are allowed here"
                )
            };
            all.addresses.push(address.map_err(|_| hint())?);
        }
    }
    Ok(all)
}

fn pin(words: &[&str]) -> Result<Pin, String> {
    let (key, rest) = key(words)?;
    if key.algorithm().contains("-cert-v01@") {
        return Err("this is a certificate: pin the key in it, or name its authority with ca".into());
    }
    let (mut proof, mut day, mut by, mut absent) = (None, None, None, None);
    for word in rest {
        if let Some(from) = word.strip_prefix("from=") {
            let proofs = "fingerprint, key, console, sshfp, ca(NAME), copy(HOST), witness(HOSTS), rotation(proved by SHA256:…), \
                          known_hosts or first-use";
            proof = Some(from.parse().map_err(|()| format!("from={from} is not a proof: it is {proofs}"))?);
        } else if let Some(who) = word.strip_prefix("by=") {
            by = Some(who).filter(|who| is_word(who)).map(str::to_owned);
        } else if let Some(since) = word.strip_prefix("absent=") {
            absent = Some(date(since)?);
        } else {
            day = Some(date(word)?);
        }
    }
    let proof = proof.ok_or("the pin does not say how it was proved: from=… is missing")?;
    let date = day.ok_or("the pin does not say when it was proved: a date such as 2026-11-20 is missing")?;
    Ok(Pin { key, proof, date, by, absent })
}

fn signer(words: &[&str]) -> Result<Signer, String> {
    let (authority, rest) = match words {
        [name, rest @ ..] if name.starts_with('@') => {
            let name = name[1..].parse().map_err(|error| format!("{error}"))?;
            (Binding::Named(name), rest)
        }
        _ => key(words).map(|(key, rest)| (Binding::Key(key), rest))?,
    };
    let principals = match rest {
        [] => None,
        [list] => {
            let list = list.strip_prefix("principals=").and_then(Patterns::parse);
            Some(list.ok_or("after the authority stands principals=NAME,NAME")?)
        }
        _ => return Err("after the authority stands principals=NAME,NAME and nothing else".into()),
    };
    Ok(Signer { authority, principals })
}

fn seen(words: &[&str]) -> Result<Move, String> {
    let address = |word: &str| word.parse::<IpAddr>().map_err(|_| format!("\"{word}\" is not an address"));
    match words {
        [from, "→" | "->", to, day, ..] => {
            Ok(Move { from: address(from)?, to: address(to)?, date: date(day)? })
        }
        _ => Err("seen is written as: seen 10.0.5.2 → 10.0.7.9 2026-11-20 (same key)".into()),
    }
}

/// Parses a key and an optional fingerprint. A wrong fingerprint reveals a damaged line.
pub(in crate::identity) fn key<'w>(words: &'w [&'w str]) -> Result<(PublicKey, &'w [&'w str]), String> {
    let [algorithm, base64, rest @ ..] = words else {
        return Err("a key has two words, such as: ssh-ed25519 AAAA…".into());
    };
    let key: PublicKey = format!("{algorithm} {base64}").parse().map_err(|error| format!("{error}"))?;
    let Some((said, others)) = rest.split_first().filter(|(word, _)| word.starts_with("SHA256:")) else {
        return Ok((key, rest));
    };
    let said: Fingerprint = said.parse().map_err(|error| format!("{error}"))?;
    let found = key.fingerprint();
    if said != found {
        return Err(format!(
            "the fingerprint {said} is not that of the key, {found}: the line is damaged or was edited in part"
        ));
    }
    Ok((key, others))
}

fn date(word: &str) -> Result<Date, String> {
    word.parse().map_err(|()| format!("\"{word}\" is not a date: dates are written 2026-11-20"))
}
