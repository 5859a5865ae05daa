//! Makes a server fit for a `dsr` listener: as a shell script, which does the same on every server and may be run again,
//! or as the steps that this server lacks. Settings come before addresses: else the server would answer ARP requests for
//! an address in between.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::persist::{File, MARK, Persist, files};
use super::settings::{self, Set, usual};
use super::tunnel::{self, Lacks};
use super::{ALL, Facts, LOOPBACK, single};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Set(Set),
    /// Adds this address to the loopback interface.
    Add(IpAddr),
    /// Gives the machine what a tunnel needs.
    Tunnel(Lacks),
}

impl Step {
    pub fn command(&self) -> String {
        match self {
            Self::Set(set) => set.command(),
            Self::Add(ip) => add(*ip),
            Self::Tunnel(lacks) => tunnel::commands(*lacks).join("; "),
        }
    }
}

/// The command that adds an address.
pub fn add(ip: IpAddr) -> String {
    format!("ip address add {ip}/{} dev {LOOPBACK}", single(ip))
}

/// What this machine lacks for tunnels with this MTU, before [`steps`]: the devices have settings once they are there.
pub fn tunnel_steps(vips: &[IpAddr], facts: &Facts, mtu: u16) -> Vec<Step> {
    tunnel::lacks(vips, facts, mtu).into_iter().map(Step::Tunnel).collect()
}

/// What this machine lacks, in the order in which it is to be done. `interface` is where settings are made; `None`: on all.
pub fn steps(vips: &[IpAddr], facts: &Facts, interface: Option<&str>) -> Vec<Step> {
    let mut steps = Vec::new();
    if vips.iter().any(IpAddr::is_ipv4) {
        steps.extend(settings::changes(facts, interface.unwrap_or(ALL)).into_iter().map(Step::Set));
        // Of a machine without tunnels there is none.
        steps.extend(tunnel::filter_change(facts).map(Step::Set));
    }
    steps.extend(vips.iter().filter(|ip| !facts.has(**ip)).map(|ip| Step::Add(*ip)));
    steps
}

/// A script for a POSIX shell. `tunnelled` are addresses whose packets come through tunnels with this MTU.
pub fn script(
    vips: &[IpAddr],
    interface: Option<&str>,
    persist: Option<Persist>,
    (tunnelled, mtu): (&[IpAddr], u16),
) -> String {
    let names: Vec<_> = vips.iter().map(IpAddr::to_string).collect();
    let mut text = format!(
        "#!/bin/sh\n# Makes this server one of {} behind direct server return. It may be run again.\nset -e\n",
        names.join(", ")
    );
    if let Some(name) = interface {
        let (path, name) = (format!("/sys/class/net/{name}"), ::text::shell::word(name));
        let _ = writeln!(
            text,
            "[ -e {} ] || {{ echo {name} is no interface of this server: nothing is changed >&2; exit 1; }}",
            ::text::shell::word(&path)
        );
    }
    let sets = usual(interface.unwrap_or(ALL));
    let files = persist.map(|persist| files_of_all(persist, vips, &sets)).unwrap_or_default();
    if !files.is_empty() {
        let _ = writeln!(
            text,
            "ours() {{\n  [ ! -e \"$1\" ] || head -n 1 \"$1\" | grep -q '{MARK}' ||\n    \
             {{ echo \"$1 was not written by penstock: nothing is changed\" >&2; exit 1; }}\n}}"
        );
    }
    for File { path, .. } in &files {
        let _ = writeln!(text, "ours {path}");
    }
    for command in tunnel::lacks(tunnelled, &Facts::default(), mtu).into_iter().flat_map(tunnel::commands) {
        let _ = writeln!(text, "{command}");
    }
    if tunnelled.iter().any(IpAddr::is_ipv4) {
        let set = tunnel::loose_filter(tunnel::device(IpAddr::from([0; 4])));
        let _ = writeln!(text, "sysctl -qw {}", set.assignment());
    }
    if vips.iter().any(IpAddr::is_ipv4) {
        let words: Vec<_> = sets.iter().map(Set::assignment).collect();
        let _ = writeln!(text, "sysctl -qw {}", words.join(" "));
    }
    for ip in vips {
        let _ = writeln!(text, "ip address replace {ip}/{} dev {LOOPBACK}", single(*ip));
    }
    for File { path, text: content, mode } in &files {
        let directory = path.rsplit_once('/').map_or("/", |(directory, _)| directory);
        let _ =
            writeln!(text, "mkdir -p {directory}\ncat > {path} <<'END'\n{content}END\nchmod {mode:o} {path}");
    }
    text
}

/// The files of several addresses, each once.
fn files_of_all(persist: Persist, vips: &[IpAddr], sets: &[Set]) -> Vec<File> {
    let mut all: Vec<File> = Vec::new();
    for file in vips.iter().flat_map(|ip| files(persist, *ip, sets)) {
        if !all.iter().any(|one| one.path == file.path) {
            all.push(file);
        }
    }
    all
}
