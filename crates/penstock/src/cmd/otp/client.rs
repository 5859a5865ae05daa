//! `penstock otp client`: parties that ask the validation server.

use std::path::PathBuf;

use base64ct::{Base64, Encoding as _};
use clap::{Args, Subcommand};
use credentials::{Store, random};
use text::table;

use super::change::changes;
use super::input;
use crate::output::{Failure, plain, print};

/// Clients of the validation server (/wsapi/2.0/verify): each has a number, and a key that signs its messages
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Add(Add),
    /// List clients
    List,
    /// Remove a client: its requests are answered with NO_SUCH_CLIENT
    Remove {
        /// Number of the client
        id: u32,
    },
}

/// Add a client, and print its number and key
#[derive(Debug, Args)]
struct Add {
    /// What the client is, for people
    #[arg(default_value = "")]
    note: String,
    /// Its number [default: the next one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=999_999_999))]
    id: Option<u32>,
    /// Without a key: nothing is signed, so a machine between this server and the client can change the answer
    #[arg(long, conflicts_with = "key_file_of_client")]
    unsigned: bool,
    /// File with a key that the client has already, in base64; - is standard input
    #[arg(long = "client-key-file", id = "key_file_of_client", value_name = "FILE")]
    key_file: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  penstock otp client add vpn
  penstock otp client add --id 16 --client-key-file key.b64 old-server
  penstock otp client list";

pub(super) fn run(store: &mut Store, arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Add(arguments) => add(store, arguments),
        Command::List => list(store),
        Command::Remove { id } => {
            let id = *id;
            changes(store, move |ledger, _| ledger.client_removal(id).map(|record| ((), record)))?;
            print(&format!("client {id} is removed\n"))
        }
    }
}

fn add(store: &mut Store, arguments: &Add) -> Result<(), Failure> {
    let secret =
        match (&arguments.key_file, arguments.unsigned) {
            (_, true) => None,
            (Some(path), _) => {
                let decoded = Base64::decode_vec(input::file(path)?.trim())
                    .ok()
                    .filter(|key| (8..=128).contains(&key.len()));
                Some(decoded.ok_or_else(|| {
                    Failure::runtime("the key of a client must be base64, of 8 to 128 bytes")
                })?)
            }
            (None, false) => Some(random::<20>().map_err(Failure::runtime)?.to_vec()),
        };
    let told = secret.as_deref().filter(|_| arguments.key_file.is_none()).map(Base64::encode_string);
    let (id, note, nonce) = (arguments.id, arguments.note.clone(), random().map_err(Failure::runtime)?);
    let id = changes(store, move |ledger, _| {
        if let Some(id) = id.filter(|id| ledger.client(*id).is_some()) {
            return Err(access::otp::ledger::Unfit::ClientExists { id });
        }
        let record = ledger.enrol_client(id, &note, secret.as_deref().map(|secret| (secret, nonce)))?;
        let access::otp::ledger::Record::Client { id, .. } = &record else {
            return Err(access::otp::ledger::Unfit::Full);
        };
        Ok((*id, record))
    })?;
    let key = told.map_or_else(String::new, |key| format!("key={key}\n"));
    print(&format!("id={id}\n{key}"))
}

fn list(store: &Store) -> Result<(), Failure> {
    let mut rows = vec![["id", "signs", "note"].map(str::to_owned).to_vec()];
    for client in store.ledger().clients() {
        let signs = if client.sealed.is_some() { "yes" } else { "no" };
        rows.push(vec![client.id.to_string(), signs.to_owned(), plain(&client.note)]);
    }
    if rows.len() == 1 {
        return print("no clients yet: penstock otp client add\n");
    }
    print(&table::of(&rows))
}
