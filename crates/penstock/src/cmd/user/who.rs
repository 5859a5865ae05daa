//! `penstock user who`: the owner of a key.

use std::io::IsTerminal;
use std::path::Path;

use clap::Args;
use hosts::authorized::line::Line;
use hosts::ssh::key::Fingerprint;
use serde_json::json;
use text::table::Table;

use super::file;
use super::input::Lines;
use super::owners::Owners;
use crate::output::{Failure, plain, print_failed, print_json};

/// Who owns a key? By its line, its fingerprint, or each line of a file
///
/// A key itself does not tell: anyone can make one and write any name behind it. The answer is that of the file of users
/// (`penstock user key add`).
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct Arguments {
    /// A line as in FILE.pub, a fingerprint (SHA256:...), or a file such as authorized_keys; `-` is standard input
    #[arg(value_name = "KEY|FINGERPRINT|FILE")]
    what: Vec<String>,
    /// Answer as JSON, for programs
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  penstock user who SHA256:NvZW4PQ/NztixA1mlqdSdvSWDnj6i8ODTVyaMLSm10M
  penstock user who ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq
  penstock user who ~/.ssh/authorized_keys
  ssh-add -L | penstock user who -

Exit codes:
    0  every key has one owner, who is not revoked
    1  some key belongs to no known owner, to two, or to a revoked one; or a line has no key
    2  wrong usage; the file of users or the file of keys cannot be read

A line may have 4,096 bytes, a file 16 MiB. A longer line is reported as one without a key, with its number.";

/// What is known of a key.
struct Answer {
    place: Option<usize>,
    key: Result<(Fingerprint, Option<Line>), String>,
    owners: Vec<String>,
    note: String,
}

pub(super) fn run(file: &Path, arguments: &Arguments) -> Result<(), Failure> {
    let users = file::read_owners(file)?;
    let owners = Owners::of(&users)?;
    let known = |place, key: Fingerprint, line: Option<Line>| {
        let names = owners.find(&key).to_vec();
        let revoked = names.iter().filter_map(|name| users.find(name)?.revoked.as_deref());
        let note = match (names.len(), revoked.max()) {
            (0, _) => "no known owner".to_owned(),
            (_, Some(date)) => format!("revoked {date}"),
            (1, None) => String::new(),
            (_, None) => "shared".to_owned(),
        };
        Answer { place, key: Ok((key, line)), owners: names, note }
    };
    let joined = arguments.what.join(" ");
    let mut shown = String::new();
    let answers: Vec<Answer> = match Asked::of(&joined)? {
        Asked::Fingerprint(key) => vec![known(None, key, None)],
        Asked::Lines(lines) => {
            shown.clone_from(&lines.shown);
            let all = lines.parse().into_iter().map(|(at, line)| match line {
                Ok(line) => known(Some(at), line.key.fingerprint(), Some(line)),
                Err(fault) => Answer {
                    place: Some(at),
                    key: Err(fault.to_string()),
                    owners: Vec::new(),
                    note: String::new(),
                },
            });
            all.collect()
        }
    };
    if answers.is_empty() {
        return Err(Failure::usage(format_args!("{shown} has no key")));
    }
    let is_fine = answers.iter().all(|answer| answer.key.is_ok() && answer.note.is_empty());
    let text = if arguments.json { as_json(&answers) } else { as_text(&answers) };
    match is_fine {
        true if arguments.json => print_json(&text),
        true => crate::output::print(&text),
        false => Err(print_failed(&text, 1)),
    }
}

/// What was asked about.
enum Asked {
    Fingerprint(Fingerprint),
    Lines(Lines),
}

impl Asked {
    fn of(what: &str) -> Result<Self, Failure> {
        if what.is_empty() {
            return match std::io::stdin().is_terminal() {
                true => {
                    Err(Failure::usage("no key\n  hint: penstock user who SHA256:..., a line, a file, or -"))
                }
                false => Ok(Self::Lines(Lines::read(Path::new("-"))?)),
            };
        }
        if what.starts_with("SHA256:") {
            let parsed = what.parse().map(Self::Fingerprint);
            return parsed.map_err(|error| Failure::usage(format_args!("{}: {error}", plain(what))));
        }
        let is_md5 = |text: &str| {
            text.len() == 47 && text.bytes().all(|byte| byte == b':' || byte.is_ascii_hexdigit())
        };
        if is_md5(what.strip_prefix("MD5:").unwrap_or(what)) {
            return Err(Failure::usage(
                "an MD5 fingerprint does not tell keys apart\n  hint: ssh-keygen -lf FILE prints the SHA256 one",
            ));
        }
        // A key that stands in the argument, or one that was meant to.
        if what.contains([' ', '\n']) && !Path::new(what).exists() {
            return Ok(Self::Lines(Lines::argument(what)));
        }
        Ok(Self::Lines(Lines::read(Path::new(what))?))
    }
}

fn as_text(answers: &[Answer]) -> String {
    let mut table = Table::default();
    table.header(["LINE", "OWNER", "KEY", "FINGERPRINT", "COMMENT"]);
    for answer in answers {
        let place = answer.place.map_or_else(|| "-".to_owned(), |line| line.to_string());
        let row = match &answer.key {
            Err(fault) => [place, "-".to_owned(), plain(fault), String::new(), String::new()],
            Ok((key, line)) => {
                let mut owner = answer.owners.join(" and ");
                match (owner.is_empty(), answer.note.is_empty()) {
                    (true, _) => owner.clone_from(&answer.note),
                    (false, false) => owner = format!("{owner} ({})", answer.note),
                    (false, true) => {}
                }
                let algorithm = line.as_ref().map_or("-", |line| line.key.algorithm());
                let comment = line.as_ref().map_or("", |line| line.comment.as_str());
                [place, owner, algorithm.to_owned(), key.to_string(), plain(comment)]
            }
        };
        table.row(row);
    }
    table.widest(50).render()
}

fn as_json(answers: &[Answer]) -> String {
    let one = |answer: &Answer| {
        let (key, line) = match &answer.key {
            Ok((key, line)) => (Some(key.to_string()), line.as_ref()),
            Err(_) => (None, None),
        };
        json!({
            "line": answer.place,
            "fingerprint": key,
            "algorithm": line.map(|line| line.key.algorithm()),
            "comment": line.map(|line| line.comment.as_str()),
            "owners": answer.owners,
            "note": answer.note,
            "fault": answer.key.as_ref().err(),
        })
    };
    format!("{}\n", answers.iter().map(one).collect::<serde_json::Value>())
}
