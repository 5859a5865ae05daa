//! `penstock ssh config`: what holds for a host, and from which line.

use std::fmt::Write as _;

use clap::Args;
use logic::ssh::config::{Effect, Faults, Proxy, Resolved, Setting};
use serde_json::{Value, json};

use super::Whom;
use crate::output::{Failure, complain, plain_lines, print, print_json};

/// Show what ssh_config says of a host, and in which line
///
/// Connects to nothing. Commands of `Match exec` are run, as ssh runs them. What OpenSSH would follow and Penstock does
/// not is listed with what that means for the connection.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    whom: Whom,
    /// Print it as `ssh -G` does, with everything that is not configured
    #[arg(long, conflicts_with = "json")]
    like_ssh: bool,
}

const EXAMPLES: &str = "\
Examples:
  penstock ssh config web1
  penstock ssh config admin@web1 -J gate
  penstock ssh config web1 --like-ssh

Exit codes: 0 well; 2 wrong usage, or the configuration has faults.";

/// Prints what holds for the host.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
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

/// Says everything that is wrong.
pub fn refuse(faults: &Faults) -> Failure {
    for fault in &faults.0 {
        complain(&format!("error: {}\n", plain_lines(&fault.to_string())));
    }
    Failure::Refused
}

/// What holds, as a table.
fn text(resolved: &Resolved) -> String {
    let mut out = format!("{}: {}\n", resolved.typed, summary(resolved));
    let place =
        |setting: &Setting| setting.place.as_ref().map_or("command line".to_owned(), ToString::to_string);
    let rows: Vec<(String, String)> = resolved
        .settings
        .iter()
        .map(|setting| (format!("{} {}", setting.keyword.name(), setting.value), place(setting)))
        .collect();
    let width = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or_default().min(WIDEST);
    for (left, right) in rows {
        let _ = writeln!(out, "  {left:width$}  {right}");
    }
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
        let _ = writeln!(out, "{harmless} more not followed, without any effect here (--json lists them)");
    }
    out
}

/// One line: who, where, through what.
pub fn summary(resolved: &Resolved) -> String {
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
    let place = |place: &Option<logic::ssh::config::Place>| match place {
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
                "place": place(&setting.place),
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
                "place": place(&notice.place),
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

/// Values wider than this push their place to the right, and only theirs.
const WIDEST: usize = 60;
