//! `penstock ssh config`: shows the effective settings of a host, with the line of each.

use std::fmt::Write as _;

use clap::Args;
use hosts::ssh::config::{Effect, Faults, Proxy, Resolved, Setting};
use serde_json::{Value, json};
use text::table::Table;

use super::host_arguments::HostArguments;
use crate::output::{Failure, complain, plain_lines, print, print_json};

/// Show what ssh_config says of a host, and in which line
///
/// Connects to nothing. Commands of `Match exec` are run, as ssh runs them. Settings that OpenSSH would use and
/// Penstock does not are listed with their effect on the connection.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    whom: HostArguments,
    /// Print it as `ssh -G` does, with everything that is not configured
    #[arg(long, conflicts_with = "json")]
    like_ssh: bool,
}

const EXAMPLES: &str = "\
Examples:
  penstock ssh config web1
  penstock ssh config admin@web1 -J gate
  penstock ssh config web1 --like-ssh

Exit codes: 0 ok; 2 wrong usage, or the configuration has faults.";

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let asked = arguments.whom.asked()?;
    let config = arguments.whom.read()?;
    let resolved = config.resolve(&asked).map_err(|faults| refuse(&faults))?;
    if arguments.like_ssh {
        let lines = resolved.like_ssh().iter().fold(String::new(), |mut all, (keyword, value)| {
            let _ = writeln!(all, "{keyword} {value}");
            all
        });
        return print(&plain_lines(&lines));
    }
    if arguments.whom.json {
        return print_json(&format!("{:#}\n", as_json(&resolved)));
    }
    print(&plain_lines(&text(&resolved)))
}

/// Reports all faults of a configuration.
pub(crate) fn refuse(faults: &Faults) -> Failure {
    for fault in &faults.0 {
        complain(&format!("error: {}\n", plain_lines(&fault.to_string())));
    }
    Failure::Refused
}

/// Formats the effective settings as a table.
fn text(resolved: &Resolved) -> String {
    let mut out = format!("{}: {}\n", resolved.typed, summary(resolved));
    let place =
        |setting: &Setting| setting.place.as_ref().map_or("command line".to_owned(), ToString::to_string);
    let mut table = Table::indented("  ").widest(WIDEST);
    for setting in &resolved.settings {
        table.row([format!("{} {}", setting.keyword.name(), setting.value), place(setting)]);
    }
    out += &table.render();
    if resolved.settings.is_empty() {
        out.push_str("  nothing is configured for it\n");
    }
    let loud: Vec<_> = resolved.notices.iter().filter(|notice| notice.effect != Effect::Harmless).collect();
    let harmless = resolved.notices.len() - loud.len();
    if !loud.is_empty() {
        out.push_str("not followed:\n");
    }
    for notice in loud {
        let place = notice.place.as_ref().map_or("command line".to_owned(), ToString::to_string);
        let keyword = notice.keyword.map_or("", |keyword| keyword.name());
        let _ = writeln!(out, "  {place}: {keyword} {}", notice.value);
        let _ = writeln!(out, "    {}: {}", notice.effect.word(), notice.meaning);
    }
    if harmless > 0 {
        let _ = writeln!(out, "{harmless} more are not followed, without effect here (--json lists them)");
    }
    out
}

/// Formats user, address and jump hosts in one line.
pub(super) fn summary(resolved: &Resolved) -> String {
    let host = match resolved.host.contains(':') {
        true => format!("[{}]", resolved.host),
        false => resolved.host.clone(),
    };
    let through = match &resolved.proxy {
        Proxy::Direct => String::new(),
        Proxy::Jump(hops) => {
            let hops: Vec<String> = hops.iter().map(ToString::to_string).collect();
            format!(", through {}", hops.join(", then "))
        }
        Proxy::Command(command) => format!(", through the command {command}"),
    };
    let known = resolved.key_alias.as_ref().map(|alias| format!(", known as {alias}")).unwrap_or_default();
    format!("{}@{host}:{}{known}{through}", resolved.user, resolved.port)
}

fn as_json(resolved: &Resolved) -> Value {
    let source = |place: &Option<hosts::ssh::config::Place>| match place {
        Some(place) => json!({ "file": *place.file, "line": place.line }),
        None => Value::Null,
    };
    let proxy = match &resolved.proxy {
        Proxy::Direct => Value::Null,
        Proxy::Jump(hops) => json!({ "jump": hops.iter().map(ToString::to_string).collect::<Vec<_>>() }),
        Proxy::Command(command) => json!({ "command": command }),
    };
    let settings: Vec<Value> = resolved
        .settings
        .iter()
        .map(|setting| {
            json!({
                "keyword": setting.keyword.name(),
                "value": setting.value.to_string(),
                "source": source(&setting.place),
            })
        })
        .collect();
    let notices: Vec<Value> = resolved
        .notices
        .iter()
        .map(|notice| {
            json!({
                "keyword": notice.keyword.map(|keyword| keyword.name()),
                "value": notice.value,
                "source": source(&notice.place),
                "effect": match notice.effect {
                    Effect::Harmless => "harmless",
                    Effect::Ignored => "ignored",
                    Effect::NeedsOpenSsh => "needs-openssh",
                },
                "meaning": notice.meaning,
            })
        })
        .collect();
    json!({
        "host": resolved.typed,
        "identity": resolved.identity(),
        "hostname": resolved.host,
        "port": resolved.port,
        "user": resolved.user,
        "proxy": proxy,
        "settings": settings,
        "not_followed": notices,
    })
}

/// Width of the value column. A wider value shifts the place only in its own row.
const WIDEST: usize = 60;
