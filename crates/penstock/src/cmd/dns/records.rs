//! `penstock dns records`: prints the records.

use access::keys::Record;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::wanted::{Keys, Wanted, WantedArguments};
use crate::output::{Failure, print, print_json};

/// Print the records of keys: SSHFP, TLSA, OPENPGPKEY, CERT
///
/// SSHFP of hosts whose keys are pinned and proved, with SHA-256; TLSA of certificates that a configuration serves, and of
/// the next ones; OPENPGPKEY and CERT of OpenPGP keys in files, each in its smallest form. Nothing is asked and nothing is
/// changed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    wanted: WantedArguments,
    /// Write this TTL in seconds [default: that of the zone]
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u32>,
    /// Form of the lines: zone for zone files, generic for programs that do not know the types (RFC 3597)
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Form::Zone)]
    form: Form,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Zone,
    Generic,
}

const EXAMPLES: &str = "\
Examples:
  penstock dns records --hosts --zone example.org >> example.org.zone
  penstock dns records --config /etc/penstock/penstock.toml --next new.pem
  penstock dns records --openpgp alice.pub --address alice@example.org --cert";

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Keys { wanted, without, .. } = arguments.wanted.read()?;
    if let Some(why) = without.first() {
        return Err(Failure::runtime(why));
    }
    if wanted.is_empty() {
        return Err(Failure::runtime("there are no records: no key of those named can have one"));
    }
    if arguments.json {
        let records: Vec<Value> = wanted.iter().map(|one| json(&one.record, Some(one))).collect();
        return print_json(&format!("{:#}\n", json!({ "records": records })));
    }
    let line = |one: &Wanted| match arguments.form {
        Form::Zone => one.record.line(arguments.ttl),
        Form::Generic => one.record.generic_line(arguments.ttl),
    };
    print(&wanted.iter().map(|one| line(one) + "\n").collect::<String>())
}

/// A record in JSON.
pub(super) fn json(record: &Record, of: Option<&Wanted>) -> Value {
    let mut value = json!({
        "name": record.owner.to_string(),
        "type": record.kind.name(),
        "data": record.data_text(),
    });
    if let Some(wanted) = of {
        value["of"] = json!(wanted.of);
    }
    value
}
