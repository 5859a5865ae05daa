//! `penstock check --privileges`: what the front door needs with a configuration, why, and until when it keeps it.

use std::path::Path;

use config::{Config, MachineFault};
use logic::rings::WantedRings;
use serde_json::{Value, json};
use serve::confinement::{self, DEFAULT_USER};
use serve::paths::{self, Access};
use text::table::Table;

use crate::output::plain;

/// What would be closed to the user that a start by root ends with, unless another fault has the key already.
pub(super) fn closed(config: &Config, file: Option<&Path>, known: &[MachineFault]) -> Vec<MachineFault> {
    let refused =
        confinement::at_start_by_root(config, file).map(|foreseen| foreseen.refused).unwrap_or_default();
    let news = refused.into_iter().filter(|one| known.iter().all(|fault| fault.key != one.key));
    news.map(|one| MachineFault { key: one.key, message: plain(&one.message), hint: Some(plain(&one.hint)) })
        .collect()
}

struct Row {
    what: String,
    why: String,
    until: &'static str,
}

const BOUND: &str = "sockets are bound";
const END: &str = "the end";

pub(super) fn table(config: &Config, file: Option<&Path>) -> String {
    let mut table = Table::indented("");
    table.header(["WHAT", "WHY", "UNTIL"]);
    for row in rows(config, file) {
        table.row([plain(&row.what), plain(&row.why), row.until.to_owned()]);
    }
    table.render()
}

pub(super) fn json(config: &Config, file: Option<&Path>) -> Value {
    let row = |row: Row| json!({"what": row.what, "why": row.why, "until": row.until});
    rows(config, file).into_iter().map(row).collect()
}

fn rows(config: &Config, file: Option<&Path>) -> Vec<Row> {
    let row = |what: &str, why: &str, until| Row { what: what.to_owned(), why: why.to_owned(), until };
    let mut rows = vec![row("the starter's user and capabilities", "binds sockets", BOUND)];
    let foreseen = confinement::at_start_by_root(config, file);
    let stays = foreseen.as_ref().and_then(|foreseen| foreseen.stays_root.clone());
    rows.push(match &config.process.user {
        Some(user) => row(&format!("user {user}"), "process.user", END),
        None if paths::starts_programs(config) => {
            row("user root, if root starts it", "backends behind SSH use root's keys; set process.user", END)
        }
        None if matches!(sys::privilege::user(DEFAULT_USER), Ok(Some(_))) => match (stays, foreseen.is_some()) {
            (Some(why), _) => row("user root, if root starts it: it stays root", &why, END),
            (None, true) => row(
                &format!("user {DEFAULT_USER}, if root starts it"),
                "the default; that user may use every file below",
                END,
            ),
            (None, false) => row(
                &format!("user {DEFAULT_USER}, if root starts it"),
                "the default; root stays where that user may not use a file below (as root this check says whether)",
                END,
            ),
        },
        None => row(
            "user root, if root starts it",
            &format!("there is no user {DEFAULT_USER}: create it, or set process.user"),
            END,
        ),
    });
    if confinement::attaches_programs(config) {
        rows.push(row(
            "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON",
            "dsr listeners: programs in the kernel forward packets; without these this process does",
            BOUND,
        ));
        rows.push(row(
            "make and remove names in /sys/fs/bpf/penstock",
            "programs and flows of dsr listeners outlive a crash; CAP_SYS_ADMIN mounts it if it is not there",
            END,
        ));
        rows.push(row("bpf(2) to read maps", "numbers of flows of dsr listeners", END));
    }
    let capabilities = confinement::capabilities(config).into_iter();
    let bound = rows.len();
    rows.extend(capabilities.map(|it| row(it.name(), it.reason(), END)));
    if rows.len() == bound {
        rows.push(row("no capability", "none is needed", END));
    }
    rows.push(row(
        "no new privileges, no core dumps",
        "no program that it starts gets more rights; no key is in a file",
        END,
    ));
    for need in paths::of(config, file) {
        let verb = match need.access {
            Access::Read => "read",
            Access::Change => "make, write and remove files in",
            Access::Connect => "connect to",
        };
        rows.push(row(&format!("{verb} {}", need.path.display()), &need.key, END));
    }
    for words in serve::acme::helper::commands(config) {
        rows.push(row(
            &format!("run {}", words.join(" ")),
            "dns.command of [acme.NAME]: by a helper without sandbox, as the user above, with no right to become another",
            END,
        ));
    }
    if paths::starts_programs(config) {
        rows.push(row(
            "start programs, use any file",
            "backends behind SSH: ssh_config(5) may name programs",
            END,
        ));
    } else {
        rows.push(row("read files of the system", "name look-ups, authorities, time zones, /proc", END));
        rows.push(row(
            "listed system calls",
            "serving; without execve, ptrace, mount, raw sockets and others",
            END,
        ));
    }
    let rings = match config.wanted_rings() {
        WantedRings::None => None,
        WantedRings::IfAllowed => Some("an io_uring for each worker, where it is allowed"),
        WantedRings::Asked => Some("an io_uring for each worker"),
    };
    rows.extend(rings.map(|rings| {
        row(
            rings,
            "process.engine: receives, sends, connects and closes; the kernel refuses other operations, and no other is made",
            END,
        )
    }));
    rows
}
