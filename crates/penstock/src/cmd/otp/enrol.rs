//! `penstock otp enrol`.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use access::otp::import::By;
use access::otp::oath::{Algorithm, Digits, Form, Shared};
use access::otp::token::{Kind, Token};
use access::otp::yubico::Secret;
use access::otp::{base32, modhex, uri, yubico};
use clap::{Args, Subcommand};
use credentials::{Store, random};
use text::shell;

use super::change::changes;
use super::{input, key, qr};
use crate::output::{Failure, plain, print};

/// Enrol a token: a YubiKey, an app that makes codes, or a key that responds to challenges
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    kind: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    Yubikey(Yubikey),
    /// Codes by the time (RFC 6238), of an authenticator app: its secret is printed as a URI and, on a terminal, a QR code
    Totp(Totp),
    /// Codes by a counter (RFC 4226): as for totp
    Hotp(Hotp),
    ChallengeResponse(key::Arguments),
}

/// The OTP of a YubiKey
///
/// Without --secret-file a public name and a secret are made, and the command is printed that writes them to the key.
#[derive(Debug, Args)]
struct Yubikey {
    #[command(flatten)]
    whose: Whose,
    /// File with "PUBLIC-NAME PRIVATE-ID AES-KEY" (modhex, 12 and 32 hexadecimal digits; commas or spaces); - is standard input
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Totp {
    #[command(flatten)]
    code: CodeArguments,
    /// Seconds for which a code is good
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(10..=300))]
    period: u16,
}

#[derive(Debug, Args)]
struct Hotp {
    #[command(flatten)]
    code: CodeArguments,
    /// The first counter of the token
    #[arg(long, value_name = "N", default_value_t = 0)]
    counter: u64,
}

#[derive(Debug, Args)]
struct CodeArguments {
    #[command(flatten)]
    whose: Whose,
    /// Name of the token [default: USER-totp or USER-hotp]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Digits of a code
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u8).range(6..=8))]
    digits: u8,
    /// Hash function: SHA1, SHA256 or SHA512; many apps know the first one only
    #[arg(long, value_name = "NAME", default_value_t = Algorithm::Sha1)]
    algorithm: Algorithm,
    /// What the app shows beside the user
    #[arg(long, value_name = "TEXT", default_value = "Penstock")]
    issuer: String,
    /// File with the secret of a token that exists, in base32; - is standard input
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Whose {
    /// The user that the token belongs to
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  penstock otp enrol totp --user alice
  penstock otp enrol hotp --user alice --digits 8
  penstock otp enrol yubikey --user bob
  penstock otp enrol yubikey --user bob --secret-file key.csv
  penstock otp enrol challenge-response --user carol
  penstock otp enrol challenge-response --user dave --state-file ~dave/.yubico/challenge-1234567";

pub(super) fn run(store: &mut Store, arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.kind {
        Which::Yubikey(arguments) => yubikey(store, arguments),
        Which::Totp(totp) => code(store, &totp.code, By::Time(totp.period.into())),
        Which::ChallengeResponse(arguments) => key::run(store, arguments),
        Which::Hotp(hotp) => code(store, &hotp.code, By::Counter(hotp.counter)),
    }
}

fn yubikey(store: &mut Store, arguments: &Yubikey) -> Result<(), Failure> {
    let (name, secret) = match &arguments.secret_file {
        Some(path) => read_key(&input::file(path)?)?,
        None => {
            // The first bytes of names that sites give out themselves are 0xff by the manufacturer's rule.
            let tail: [u8; 5] = random().map_err(Failure::runtime)?;
            let name = modhex::encode(&[&[0xff], &tail[..]].concat());
            (name, Secret::new(random().map_err(Failure::runtime)?, random().map_err(Failure::runtime)?))
        }
    };
    add(store, &name, arguments.whose.user.as_deref(), Kind::Yubico { last: None }, &secret.bytes())?;
    let mut said = format!("enrolled {name}\n");
    if arguments.secret_file.is_none() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let bytes = secret.bytes();
        said.push_str(&format!(
            "write it to the key, then forget these lines:\n  ykman otp yubiotp 1 --public-id {name} --private-id {} --key {}\n",
            hex(&bytes[16..]),
            hex(&bytes[..16])
        ));
    }
    print(&said)
}

fn read_key(text: &str) -> Result<(String, Secret), Failure> {
    let wrong = |why: &str| {
        Failure::runtime(format!("the secret file {why}: it must hold PUBLIC-NAME PRIVATE-ID AES-KEY"))
    };
    let words: Vec<&str> = text.split([',', ' ', '\t', '\n', '\r']).filter(|word| !word.is_empty()).collect();
    let [name, private_id, key] = words[..] else { return Err(wrong("has not three words")) };
    // As a line of an export, so that each part has its own message.
    let line = format!("0,{name},{private_id},{key},");
    let (mut entries, faults) = access::otp::import::read(access::otp::import::Format::Ksm, &line);
    match (entries.pop(), faults.first()) {
        (Some((_, access::otp::import::Entry::Key { name, secret })), None) => Ok((name, secret)),
        (_, Some(fault)) => Err(wrong(&format!("is wrong ({})", fault.why))),
        _ => Err(wrong("is wrong")),
    }
}

fn code(store: &mut Store, arguments: &CodeArguments, by: By) -> Result<(), Failure> {
    let Some(user) = &arguments.whose.user else {
        return Err(Failure::usage(
            "a token that makes codes needs --user: its codes do not say whose they are",
        ));
    };
    let secret = match &arguments.secret_file {
        Some(path) => {
            let shown = plain(&path.display().to_string());
            let bytes = base32::decode(input::file(path)?.trim()).ok_or_else(|| {
                Failure::runtime(format!(
                    "the secret in {shown} is no base32: it has the letters A to Z and the digits 2 to 7, and nothing is cut off"
                ))
            })?;
            let length = bytes.len();
            Shared::new(bytes).ok_or_else(|| {
                Failure::runtime(format!(
                    "the secret in {shown} has {length} bytes: 16 to 128 are needed (RFC 4226: at least 128 bits)"
                ))
            })?
        }
        None => {
            // As long as the output of the hash function (RFC 4226 section 4, RFC 6238 section 5.1).
            let bytes: [u8; 64] = random().map_err(Failure::runtime)?;
            let length = match arguments.algorithm {
                Algorithm::Sha1 => 20,
                Algorithm::Sha256 => 32,
                Algorithm::Sha512 => 64,
            };
            Shared::new(bytes[..length].to_vec()).ok_or_else(|| Failure::runtime("no secret was made"))?
        }
    };
    let digits = Digits::new(arguments.digits).unwrap_or(Digits::SIX);
    let form = Form { algorithm: arguments.algorithm, digits };
    let kind = match by {
        By::Counter(next) => Kind::Hotp { form, next },
        By::Time(period) => Kind::Totp { form, period, last: None, drift: 0 },
    };
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => free_name(store, &format!("{user}-{}", kind.word())),
    };
    add(store, &name, Some(user), kind, secret.bytes())?;
    let mut said = format!("enrolled {}\n", plain(&name));
    if arguments.secret_file.is_none() {
        let uri = uri::otpauth(&arguments.issuer, user, form, by, &secret);
        if std::io::stdout().is_terminal() {
            said.push_str(&qr::draw(&uri).unwrap_or_default());
        }
        said.push_str(&format!("{}\n", &*uri));
        said.push_str(&format!("try it: penstock otp verify --user {}\n", shell::word(user)));
    }
    print(&said)
}

/// The name, or with a number if there is such a token.
fn free_name(store: &Store, name: &str) -> String {
    let numbered = (2..1000).map(|number| format!("{name}-{number}"));
    let mut names = [name.to_owned()].into_iter().chain(numbered);
    names.find(|name| store.ledger().token(name).is_none()).unwrap_or_else(|| name.to_owned())
}

fn add(store: &mut Store, name: &str, user: Option<&str>, kind: Kind, secret: &[u8]) -> Result<(), Failure> {
    if matches!(kind, Kind::Yubico { .. }) && !yubico::is_name(name) {
        return Err(Failure::usage("the public name of a YubiKey is modhex, from 2 to 32 letters"));
    }
    let sealed = store.ledger().key().seal(name, secret, random().map_err(Failure::runtime)?);
    let (name, user) = (name.to_owned(), user.map(str::to_owned));
    changes(store, move |ledger, now| {
        let token = Token::new(name, user, kind, sealed, now);
        ledger.enrol(&token).map(|record| ((), record))
    })
}
