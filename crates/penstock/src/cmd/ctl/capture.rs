//! `penstock ctl capture`: writes the bytes of sessions into a file.
//!
//! The server may not write there. It sends the packets over its control socket, and the operator's own rights decide.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64ct::{Base64, Encoding};
use clap::Args;
use serde_json::{Value, json};
use text::units;

use super::word::parse_word;
use crate::ctl::client::Client;
use crate::duration;
use crate::output::{Failure, complain, plain, print, print_json};

#[derive(Debug, Args)]
pub(super) struct Capture {
    /// NAME of [listener.NAME]. TLS is captured decrypted
    #[arg(long, value_name = "NAME", value_parser = parse_word)]
    listener: String,
    /// The file, which must not exist yet; it gets mode 0600, because it has what clients send. - is standard output
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Stop before the file is larger: KiB, MiB, GiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    max_size: u64,
    /// Stop after this time; Ctrl-C stops at once
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = time)]
    time: Duration,
    /// Only sessions of this address or network, such as 203.0.113.0/24
    #[arg(long, value_name = "NETWORK", value_parser = parse_word)]
    client: Option<String>,
}

impl Capture {
    pub(super) fn words(&self) -> Vec<String> {
        let Self { listener, max_size, time, client, .. } = self;
        let time = format!("{}ms", time.as_millis());
        let words = [listener, "for", &time, "size", &max_size.to_string()].map(str::to_owned);
        words
            .into_iter()
            .chain(client.iter().flat_map(|client| ["client".to_owned(), client.clone()]))
            .collect()
    }

    pub(super) fn run(&self, client: &mut Client, as_json: bool) -> Result<(), Failure> {
        let line = format!("capture {}", self.words().join(" "));
        let nothing = NothingSeen(
            "nothing that matches came meanwhile; a connection is captured only if it begins during the capture",
        );
        write_packets(client, &line, &self.to, as_json, &nothing)
    }
}

/// What is said if the file has no packet.
pub(super) struct NothingSeen(pub(super) &'static str);

/// Sends the command, and writes the packets of its answer into the file.
pub(super) fn write_packets(
    client: &mut Client,
    line: &str,
    to: &Path,
    as_json: bool,
    nothing_seen: &NothingSeen,
) -> Result<(), Failure> {
    let is_standard_output = to.as_os_str() == "-";
    let mut out = open(to)?;
    let mut written = 0;
    let mut pieces = 0;
    let mut total = None;
    let mut notes = None;
    let result = client.follow(line, |line| {
        if let Some(line) = line.strip_prefix('#') {
            let said = serde_json::from_str::<Value>(line).ok();
            match said.as_ref().and_then(|said| said["notes"].as_array()) {
                Some(all) => {
                    for note in all.iter().filter_map(Value::as_str) {
                        complain(&format!("note: {}\n", plain(note)));
                    }
                    notes = Some(all.clone());
                }
                None => total = said,
            }
            return Ok(());
        }
        let bytes = Base64::decode_vec(line).map_err(|_| {
            Failure::runtime("the server sent something else than packets: are both of one version?")
        })?;
        match out.write(&bytes) {
            Ok(()) => {
                written += bytes.len() as u64;
                pieces += 1;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
            // The first piece is the beginning of the file, without a packet.
            Err(error) if pieces > 1 => Err(out.cut(to, &error, written)),
            Err(error) => {
                written = 0;
                Err(unwritable(to, &error))
            }
        }
    });
    if let Err(failure) = result {
        if written == 0 && !is_standard_output {
            // Nothing was captured, or the disk was full from the start. An error only means that the file stays.
            let _ = std::fs::remove_file(to);
        }
        return Err(failure);
    }
    if is_standard_output {
        // The packets are on standard output.
        if let Some(words) = total.as_ref().and_then(|total| total["text"].as_str()) {
            complain(&format!("note: {}\n", plain(words)));
        }
        return Ok(());
    }
    let shown = to.display().to_string();
    if as_json {
        let of = |key: &str| total.as_ref().map(|total| total[key].clone());
        let mut answer = json!({
            "file": shown,
            "bytes": written,
            "packets": of("packets"),
            "sessions": of("sessions"),
            "left_out": of("left_out"),
            "missed": of("missed"),
            "end": of("end"),
        });
        if let Some(notes) = notes {
            answer["notes"] = Value::Array(notes);
        }
        return print_json(&format!("{answer}\n"));
    }
    let nothing = total.as_ref().is_some_and(|total| total["packets"] == 0);
    let words = total.as_ref().and_then(|total| total["text"].as_str());
    let words = words.map_or_else(|| units::bytes(written), plain);
    let hint = if nothing { format!("\n{}", nothing_seen.0) } else { String::new() };
    print(&format!("{}: {words}{hint}\n", plain(&shown)))
}

/// Where the packets go.
enum Output {
    File(File),
    Standard(io::Stdout),
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all(bytes),
            Self::Standard(out) => out.write_all(bytes).and_then(|()| out.flush()),
        }
    }

    /// Cuts off a packet that was not written whole: the file ends after `whole` bytes. Returns what to say.
    fn cut(&self, path: &Path, error: &io::Error, whole: u64) -> Failure {
        match self {
            Self::File(file) if file.set_len(whole).is_ok() => {
                let shown = plain(&path.display().to_string());
                Failure::runtime(format_args!(
                    "{shown} cannot be written: {error}\n  hint: it has {} of whole packets from before; --max-size ends a \
                     capture before the disk is full",
                    units::bytes(whole)
                ))
            }
            _ => unwritable(path, error),
        }
    }
}

fn open(path: &Path) -> Result<Output, Failure> {
    if path.as_os_str() == "-" {
        if io::IsTerminal::is_terminal(&io::stdout()) {
            complain("warning: packets are no text: write them into a file, or into tshark -r -\n");
        }
        return Ok(Output::Standard(io::stdout()));
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => Ok(Output::File(file)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let shown = plain(&path.display().to_string());
            Err(Failure::usage(format_args!(
                "{shown} exists already\n  hint: name another file, or remove it"
            )))
        }
        Err(error) => Err(unwritable(path, &error)),
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::runtime(format_args!("{} cannot be written: {error}", plain(&path.display().to_string())))
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    duration::between(text, Duration::from_millis(1), Duration::from_secs(24 * 3600))
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("G", 30), ("M", 20), ("K", 10), ("B", 0)];
    let read = units.iter().find_map(|(unit, shift)| {
        let number = text.strip_suffix(unit)?.parse::<u64>().ok()?;
        number.checked_mul(1 << shift)
    });
    match read {
        Some(size) if (1024..=1 << 40).contains(&size) => Ok(size),
        _ => Err("it is a size from 1KiB to 1024GiB, such as 64MiB".to_owned()),
    }
}
