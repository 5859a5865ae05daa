//! Tokens of other programs: exports of YK-KSM (keys) and YK-VAL (counters), the log of the YubiKey Personalization Tool, and
//! the users file of pam_oath and oathtool.

use zeroize::Zeroizing;

use super::hex;
use super::oath::{Algorithm, Digits, Form, Shared};
use super::yubico::{self, Secret};

text::words! {
    /// Program that wrote a file.
    pub enum Format: "format" {
        /// `ykksm-export`, `ykksm-gen-keys`, or the log of the YubiKey Personalization Tool.
        Ksm = "ksm",
        /// `ykval-export`: the counters of keys that are known already.
        Val = "ykval",
        /// `users.oath` of pam_oath.
        Oath = "oath",
    }
}

/// What a line holds.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A YubiKey.
    Key {
        /// Its public name.
        name: String,
        /// What it shares with its verifier.
        secret: Secret,
    },
    /// What a validation server accepted last of a YubiKey.
    Counters {
        /// Its public name.
        name: String,
        /// Counter of sessions.
        session: u16,
        /// Counter of presses.
        press: u8,
        /// Clock of the key.
        timestamp: u32,
        /// Nonce of the last request.
        nonce: String,
        /// Whether the server accepted this key.
        active: bool,
    },
    /// A token that makes codes.
    Code {
        /// The user it belongs to.
        owner: String,
        /// How it makes codes.
        form: Form,
        /// By what.
        by: By,
        /// What it shares with its verifier.
        secret: Shared,
    },
}

/// What changes from code to code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A counter: the lowest one that is good.
    Counter(u64),
    /// The time, in steps of so many seconds.
    Time(u64),
}

/// A line that cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Fault {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong; it repeats no secret.
    pub why: String,
}

/// Reads a file: each line is an entry or a fault; comments and empty lines are neither.
#[must_use]
pub fn read(format: Format, text: &str) -> (Vec<(usize, Entry)>, Vec<Fault>) {
    let (mut entries, mut faults) = (Vec::new(), Vec::new());
    if text.trim_start().starts_with("-----BEGIN PGP") {
        let why = "the file is encrypted: decrypt it first (gpg --decrypt FILE | penstock otp import ... -)"
            .to_owned();
        return (entries, vec![Fault { line: 1, why }]);
    }
    for (at, line) in text.lines().enumerate() {
        let (line, number) = (line.trim(), at + 1);
        if line.is_empty() || line.starts_with('#') || line.starts_with("LOGGING START") {
            continue;
        }
        let entry = match format {
            Format::Ksm => ksm(line),
            Format::Val => val(line),
            Format::Oath => oath(line),
        };
        match entry {
            Ok(entry) => entries.push((number, entry)),
            Err(why) => faults.push(Fault { line: number, why }),
        }
    }
    (entries, faults)
}

fn bytes<const N: usize>(text: &str, what: &str) -> Result<[u8; N], String> {
    let decoded = hex::decode(text.trim()).map(Zeroizing::new);
    let exact = decoded.and_then(|bytes| <[u8; N]>::try_from(bytes.as_slice()).ok());
    exact.ok_or_else(|| format!("the {what} must be {} hexadecimal digits", 2 * N))
}

fn name_of(text: &str) -> Result<String, String> {
    let name = text.trim().to_ascii_lowercase();
    match yubico::is_name(&name) {
        true => Ok(name),
        false => Err("the public name must be modhex (cbdefghijklnrtuv), from 2 to 32 letters".to_owned()),
    }
}

/// `serialnr,identity,internaluid,aeskey,lockpw,created,accessed[,progflags]`, or
/// `Yubico OTP,time,slot,identity,internaluid,aeskey,...` of the Personalization Tool.
fn ksm(line: &str) -> Result<Entry, String> {
    let fields: Vec<&str> = line.split(',').collect();
    let fields = match fields.first().copied() {
        Some("Yubico OTP") => fields.get(3..).unwrap_or_default(),
        Some(other) if other.contains(' ') || other.contains("OATH") => {
            return Err("it is not the configuration of a Yubico OTP".to_owned());
        }
        _ => fields.get(1..).unwrap_or_default(),
    };
    let [name, private_id, key, ..] = fields else {
        return Err(
            "it has too few fields: serialnr,identity,internaluid,aeskey,lockpw,created,accessed".to_owned()
        );
    };
    let secret = Secret::new(bytes(key, "AES key")?, bytes(private_id, "private id")?);
    Ok(Entry::Key { name: name_of(name)?, secret })
}

/// `active,created,modified,yk_publicname,yk_counter,yk_use,yk_low,yk_high,nonce,notes`
fn val(line: &str) -> Result<Entry, String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [active, _, _, name, counter, uses, low, high, nonce, ..] = fields[..] else {
        return Err(
            "it has too few fields: active,created,modified,yk_publicname,yk_counter,yk_use,yk_low,yk_high,nonce,notes"
                .to_owned(),
        );
    };
    let number = |text: &str, what: &str, most: u32| {
        let number = text.parse::<u32>().ok().filter(|number| *number <= most);
        number.ok_or_else(|| format!("{what} must be a number from 0 to {most}"))
    };
    let narrow = |_| "a number is too large".to_owned();
    let (low, high) = (number(low, "yk_low", 0xffff)?, number(high, "yk_high", 0xff)?);
    Ok(Entry::Counters {
        name: name_of(name)?,
        session: number(counter, "yk_counter", 0x7fff)?.try_into().map_err(narrow)?,
        press: number(uses, "yk_use", 0xff)?.try_into().map_err(narrow)?,
        timestamp: high << 16 | low,
        nonce: nonce.chars().filter(char::is_ascii_alphanumeric).take(40).collect(),
        active: matches!(active, "1" | "t" | "true"),
    })
}

/// `TYPE USER PREFIX SECRET [COUNTER [LAST-CODE [TIME]]]`
fn oath(line: &str) -> Result<Entry, String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [kind, owner, prefix, secret, ref rest @ ..] = fields[..] else {
        return Err("it has too few fields: TYPE USER PREFIX SECRET".to_owned());
    };
    if !matches!(prefix, "-" | "+") {
        return Err(format!(
            "user {owner:?} types a PIN before the code: that is not supported, and would be lost"
        ));
    }
    let unknown = || format!("{kind:?} is no type that is known: HOTP, HOTP/E/8, HOTP/T30, HOTP/T30/6");
    let mut parts = kind.split('/');
    if parts.next() != Some("HOTP") {
        return Err(unknown());
    }
    let period = match parts.next() {
        None | Some("E") => None,
        Some(by) => {
            let seconds = by.strip_prefix('T').and_then(|seconds| seconds.parse::<u64>().ok());
            Some(seconds.filter(|seconds| (1..=3600).contains(seconds)).ok_or_else(unknown)?)
        }
    };
    let digits = match parts.next() {
        None => Digits::SIX,
        Some(digits) => digits.parse().ok().and_then(Digits::new).ok_or_else(unknown)?,
    };
    let secret = hex::decode(secret).and_then(Shared::new);
    let secret = secret.ok_or("the secret must be 32 to 256 hexadecimal digits")?;
    let by = match period {
        Some(period) => By::Time(period),
        None => {
            let counter = rest.first().map_or(Ok(0), |text| text.parse::<u64>());
            let counter = counter.map_err(|_| "the counter is no number".to_owned())?;
            // With a last code it is the counter of that code.
            By::Counter(counter.saturating_add(u64::from(rest.len() > 1)))
        }
    };
    let form = Form { algorithm: Algorithm::Sha1, digits };
    Ok(Entry::Code { owner: owner.to_owned(), form, by, secret })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_of_yk_ksm_and_of_the_personalization_tool_are_read() {
        let text = "# ykksm 1\n# serialnr,identity,internaluid,aeskey,lockpw,created,accessed[,progflags]\n\
                    1,cccccccccccd,5a1c6bf1ecc9,ef8b4d1b0c0f4f7a9c1d2e3f4a5b6c7d,c7ba9f5a5d68,2009-12-03T22:44:31,\n\
                    LOGGING START,1/1/2020\n\
                    Yubico OTP,12/11/2013 11:10,1,vvccccfblhbf,5a1c6bf1ecc9,ef8b4d1b0c0f4f7a9c1d2e3f4a5b6c7d,000000000000,,,0,0,0\n# the end\n";
        let (entries, faults) = read(Format::Ksm, text);
        assert_eq!(faults, []);
        let names: Vec<_> = entries
            .iter()
            .map(|(line, entry)| match entry {
                Entry::Key { name, secret } => (*line, name.as_str(), secret.bytes()[16]),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(names, [(3, "cccccccccccd", 0x5a), (5, "vvccccfblhbf", 0x5a)]);
    }

    #[test]
    fn each_wrong_line_is_told_with_its_number_and_without_its_secret() {
        let text = "1,cccc\n1,aaaa,5a1c6bf1ecc9,ef8b4d1b0c0f4f7a9c1d2e3f4a5b6c7d,,,\n1,cccc,5a,ef8b4d1b0c0f4f7a9c1d2e3f4a5b6c7d,,,\n\
                    1,cccc,5a1c6bf1ecc9,ef8b,,,\nOATH-HOTP,1/1/2020,1,x,,ef8b,,\n";
        let (entries, faults) = read(Format::Ksm, text);
        assert!(entries.is_empty());
        let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "line 1: it has too few fields: serialnr,identity,internaluid,aeskey,lockpw,created,accessed",
                "line 2: the public name must be modhex (cbdefghijklnrtuv), from 2 to 32 letters",
                "line 3: the private id must be 12 hexadecimal digits",
                "line 4: the AES key must be 32 hexadecimal digits",
                "line 5: it is not the configuration of a Yubico OTP",
            ]
        );
        assert!(read(Format::Ksm, "-----BEGIN PGP MESSAGE-----\n").1[0].why.contains("gpg --decrypt"));
    }

    #[test]
    fn counters_of_yk_val_are_read() {
        let (entries, faults) = read(
            Format::Val,
            "1,1383728711,1383733691,cccccccccccd,12,3,500,2,fa9d8e7a,note, with comma\n0,1,1,cccccccccccb,1,1,1,1,,\n1,1,1,cc,40000,1,1,1,,",
        );
        assert_eq!(faults.len(), 1);
        let Entry::Counters { session: 12, press: 3, timestamp, active: true, .. } = &entries[0].1 else {
            panic!("{entries:?}")
        };
        assert_eq!(*timestamp, 2 << 16 | 500);
        assert!(matches!(entries[1].1, Entry::Counters { active: false, .. }));
    }

    #[test]
    fn users_files_of_pam_oath_are_read() {
        let secret = "3132333435363738393031323334353637383930";
        let text = format!(
            "HOTP alice - {secret}\nHOTP/E/8 bob + {secret} 7\nHOTP carol - {secret} 7 123456 2009-12-07T23:23:49L\nHOTP/T30 dave - {secret}\nHOTP/T60/8 erin - {secret} 0 1 x\n"
        );
        let (entries, faults) = read(Format::Oath, &text);
        assert_eq!(faults, []);
        let told: Vec<_> = entries
            .iter()
            .map(|(_, entry)| match entry {
                Entry::Code { owner, form, by, .. } => (owner.as_str(), form.digits.count(), *by),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            told,
            [
                ("alice", 6, By::Counter(0)),
                ("bob", 8, By::Counter(7)),
                ("carol", 6, By::Counter(8)),
                ("dave", 6, By::Time(30)),
                ("erin", 8, By::Time(60))
            ]
        );
        let wrong = format!(
            "HOTP frank 1234 {secret}\nMOTP x - {secret}\nHOTP/T0 x - {secret}\nHOTP/E/9 x - {secret}\nHOTP x - 31\nHOTP x - {secret} y\n"
        );
        let (entries, faults) = read(Format::Oath, &wrong);
        assert_eq!((entries.len(), faults.len()), (0, 6));
        assert!(faults[0].why.contains("PIN"));
    }
}
