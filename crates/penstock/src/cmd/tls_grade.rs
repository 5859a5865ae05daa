//! `penstock tls-grade`: rates listeners as SSL Labs does, with `crates/grade`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use config::types::{BindAddress, Listener};
use grade::report::{self, Whose};
use grade::{Letter, Limits, Report, Target, Trust};
use logic::peers::Peer;
use serde_json::json;

use crate::duration;
use crate::load;
use crate::output::{Failure, complain, plain, plain_lines, print, print_json};

/// Rate the TLS of a listener, ours or any other, by real handshakes
///
/// Tests with many short handshakes which versions, ciphers and groups are accepted, examines the certificates, OCSP
/// staple, resumption and Strict-Transport-Security, and prints the grade of SSL Labs' rating guide (2009r), with the
/// reasons for a grade below A+ and advice. Without an ADDRESS it tests the listeners of the configuration, once for
/// each certificate. Nothing is sent to any other server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    // Not a doc comment: rustdoc takes brackets for a link.
    #[arg(
        help = "The server: HOST, HOST:PORT or [IPv6]:PORT; the port is 443 if none is given",
        conflicts_with = "config"
    )]
    address: Option<String>,
    /// Ask for the certificate of this name, with any ADDRESS
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Test the listeners of this configuration; the variable PENSTOCK_CONFIG names it too
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Trust the authorities (or the very certificates) in this PEM file instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Exit with code 1 if a grade is worse than this: A+, A, A-, B, C, D, E or F
    #[arg(long, value_name = "GRADE")]
    fail_below: Option<Letter>,
    /// Print all results as JSON
    #[arg(long)]
    json: bool,
    /// Time limit for each listener and name in seconds, or with a unit: ms, s, m
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = patience)]
    timeout: Duration,
}

const EXAMPLES: &str = "\
Examples:
  penstock tls-grade www.example.com
  penstock tls-grade 127.0.0.1:8443 --name www.example.com --ca /etc/ssl/our-ca.pem
  penstock tls-grade --config /etc/penstock/penstock.toml --fail-below A
  penstock tls-grade www.example.com --json

Exit codes: 0 graded; 1 a grade is worse than --fail-below; 2 wrong usage, or a listener could not be asked or graded.";

/// Tests the listeners, prints the grades, and fails if a grade is worse than `--fail-below`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let trust = match &arguments.ca {
        Some(file) => Trust::from_file(file).map_err(Failure::usage)?,
        None => Trust::system(),
    };
    let plan = plan(arguments)?;
    let limits = Limits { connection: PATIENCE, whole: arguments.timeout };
    let mut done = Done { reports: Vec::new(), skipped: plan.skipped };
    for target in &plan.targets {
        match grade::grade(target, &trust, limits) {
            Ok(report) => {
                if !arguments.json {
                    let gap = if done.reports.is_empty() { "" } else { "\n" };
                    let text = report::text(&report, plan.whose, SystemTime::now());
                    print(&format!("{gap}{}", plain_lines(&text)))?;
                }
                done.reports.push(report);
            }
            Err(error) => done.skipped.push(error.to_string()),
        }
    }
    if arguments.json {
        let all = json!({ "reports": done.reports, "errors": done.skipped });
        print_json(&format!("{all:#}\n"))?;
    }
    if !arguments.json && done.reports.len() > 1 {
        let grades = done.reports.iter().map(|report| (report.verdict.grade, plain(&report.name)));
        print(&format!("\n{}\n", summary(grades)))?;
    }
    done.verdict(arguments.fail_below)
}

/// Counts each grade, the worst first, and names the listeners if they are few.
fn summary(grades: impl Iterator<Item = (Option<Letter>, String)>) -> String {
    const FEW: usize = 5;
    let mut by_grade: BTreeMap<Option<Letter>, Vec<String>> = BTreeMap::new();
    for (grade, name) in grades {
        by_grade.entry(grade).or_default().push(name);
    }
    let asked: usize = by_grade.values().map(Vec::len).sum();
    // `None` (no grade) is first in the map and counts as the worst.
    let (none, some): (Vec<_>, Vec<_>) = by_grade.into_iter().partition(|(grade, _)| grade.is_none());
    let told = none.into_iter().chain(some.into_iter().rev()).map(|(grade, names)| {
        let grade = grade.map_or("no grade".to_owned(), |grade| grade.to_string());
        match names.len() {
            count @ ..=FEW => format!("{count} x {grade} ({})", names.join(", ")),
            count => format!("{count} x {grade}"),
        }
    });
    format!("{asked} certificates asked for: {}", told.collect::<Vec<_>>().join("; "))
}

/// Time limit of one connection. Handshakes are short: a slower server counts as not answering.
const PATIENCE: Duration = Duration::from_secs(5);

fn patience(text: &str) -> Result<Duration, String> {
    duration::between(text, Duration::from_secs(1), Duration::from_secs(3600))
}

struct Plan {
    targets: Vec<Target>,
    /// Listeners that cannot be tested, with the reason.
    skipped: Vec<String>,
    whose: Whose,
}

struct Done {
    reports: Vec<Report>,
    skipped: Vec<String>,
}

impl Done {
    fn verdict(&self, wanted: Option<Letter>) -> Result<(), Failure> {
        for why in &self.skipped {
            complain(&format!("error: {}\n", plain(why)));
        }
        if !self.skipped.is_empty() || self.reports.iter().any(|report| report.verdict.grade.is_none()) {
            return Err(Failure::Refused);
        }
        let below = |report: &&Report| match (report.verdict.grade, wanted) {
            (Some(grade), Some(wanted)) => grade.is_below(wanted),
            _ => false,
        };
        let below: Vec<String> = self
            .reports
            .iter()
            .filter(below)
            .filter_map(|report| Some(format!("{} is {}", plain(&report.name), report.verdict.grade?)))
            .collect();
        match (below.is_empty(), wanted) {
            (false, Some(wanted)) => {
                Err(Failure::runtime(format!("{}: worse than {wanted}", below.join(", "))))
            }
            _ => Ok(()),
        }
    }
}

fn plan(arguments: &Arguments) -> Result<Plan, Failure> {
    if let Some(address) = &arguments.address {
        let target = Target::parse(address, arguments.name.as_deref()).map_err(Failure::usage)?;
        return Ok(Plan { targets: vec![target], skipped: Vec::new(), whose: Whose::Unknown });
    }
    let named = std::env::var_os("PENSTOCK_CONFIG").filter(|name| !name.is_empty()).map(PathBuf::from);
    let Some(file) = arguments.config.clone().or(named) else {
        return Err(Failure::usage(
            "nobody to ask\n  hint: `penstock tls-grade HOST:PORT`, or --config FILE for the listeners of a configuration",
        ));
    };
    of_configuration(&file, arguments.name.as_deref())
}

/// Plans the listeners of a configuration, with one server name per certificate.
fn of_configuration(file: &Path, name: Option<&str>) -> Result<Plan, Failure> {
    let loaded = load::file(file, &load::environment())?;
    let mut plan = Plan { targets: Vec::new(), skipped: Vec::new(), whose: Whose::Penstock };
    for listener in &loaded.config.listeners {
        let Some(tls) = &listener.tls else { continue };
        let names = match name {
            Some(name) => vec![name.to_owned()],
            None => tls::names(tls).iter().filter_map(|names| askable(names)).collect(),
        };
        if names.is_empty() {
            let see = match tls.acme {
                None => "`penstock check` says why",
                Some(_) => "the authority has given none yet? `penstock ctl certs` says",
            };
            let why = format!("listener {}: no certificate can be read: {see}", listener.name);
            plan.skipped.push(why);
            continue;
        }
        match addresses(listener) {
            Ok(addresses) => {
                let asked =
                    addresses.iter().flat_map(|address| names.iter().map(move |name| (address, name)));
                for (address, name) in asked {
                    match Target::parse(&address.to_string(), Some(name)) {
                        // Certificates that differ only in their keys have the same names.
                        Ok(target) if plan.targets.contains(&target) => {}
                        Ok(target) => plan.targets.push(target),
                        Err(error) => plan.skipped.push(format!("listener {}: {error}", listener.name)),
                    }
                }
            }
            Err(why) => plan.skipped.push(format!("listener {}: {why}", listener.name)),
        }
    }
    if plan.targets.is_empty() && plan.skipped.is_empty() {
        return Err(Failure::usage(format!(
            "no listener in {} has tls\n  hint: `penstock tls-grade HOST:PORT` asks any other",
            file.display()
        )));
    }
    Ok(plan)
}

/// Returns a name that a client could send; for a wildcard, a name below it.
fn askable(names: &[String]) -> Option<String> {
    let plain = names.iter().find(|name| !name.starts_with("*."));
    plain.cloned().or_else(|| names.first().map(|name| name.replacen('*', "www", 1)))
}

/// Returns the addresses of a listener that can be reached from this machine.
fn addresses(listener: &Listener) -> Result<Vec<SocketAddr>, String> {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let wants_header = |ip| listener.proxy_protocol_from.contains(&Peer::Ip(SocketAddr::new(ip, 0)));
    if loopback.into_iter().any(wants_header) {
        return Err(
            "it wants a PROXY header from this machine: ask it by its address, from another".to_owned()
        );
    }
    let mut found = Vec::new();
    for bind in &listener.binds {
        match bind {
            BindAddress::Ip(address) if address.port() != 0 => {
                let ip = match address.ip() {
                    IpAddr::V4(ip) if ip.is_unspecified() => loopback[0],
                    IpAddr::V6(ip) if ip.is_unspecified() => loopback[1],
                    ip => ip,
                };
                found.push(SocketAddr::new(ip, address.port()));
            }
            _ => {}
        }
    }
    if found.is_empty() {
        return Err("it has no fixed address and port: give its address as the argument".to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_tells_the_worst_grade_first_and_names_the_few() {
        let good = (0..6).map(|at| (Some(Letter::APlus), format!("{at}.example")));
        let bad = [(Some(Letter::F), "f.example".to_owned()), (None, "x.example".to_owned())];
        assert_eq!(
            summary(good.chain(bad)),
            "8 certificates asked for: 1 x no grade (x.example); 1 x F (f.example); 6 x A+"
        );
    }
}
