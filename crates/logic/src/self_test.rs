//! Judges what this machine gives to Penstock, and says of what is wrong what mends it: `penstock doctor`.
//!
//! `crates/serve/src/self_test.rs` reads the [`Facts`] (`crates/logic/src/self_test/facts.rs`); nothing here reads anything.

use std::time::{Duration, SystemTime};

use text::units;

use crate::finding::Finding;

pub mod facts;
mod limits;
mod ports;
mod system;
#[cfg(test)]
mod tests;

use facts::{
    Binary, Certificate, Clock, Configuration, Facts, Given, Gssapi, Kept, NamedBy, Needed, OpenTo, Standing,
    Use, User,
};

/// One line or more for each subject, in the order of the documentation.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found = vec![binary(facts)];
    found.extend(facts.configuration.iter().flat_map(configuration));
    found.push(user(&facts.user));
    found.extend(facts.capabilities.iter().map(capability));
    found.extend(system::sandbox(&facts.kernel));
    found.extend(limits::judge(&facts.limits));
    found.push(clock(&facts.clock));
    found.push(system::resolver(&facts.resolver));
    found.push(system::ipv6(&facts.ipv6));
    found.extend(facts.certificates.iter().map(|one| certificate(one, facts.clock.now)));
    found.extend(facts.ports.iter().map(|port| ports::judge(port, facts.server.as_ref())));
    found.push(gssapi(&facts.gssapi));
    found.extend(system::features(&facts.kernel));
    found
}

fn binary(facts: &Facts) -> Finding {
    let Binary { path, version, open_to } = &facts.binary;
    if *open_to == OpenTo::Others {
        let mend = format!("chmod go-w {}", text::shell::word(path));
        return Finding::fault(
            "binary",
            format!("{path} can be replaced by other users than its owner"),
            vec![mend],
        );
    }
    match &facts.server {
        Some(server) if server.version != *version => Finding::fault(
            "binary",
            format!(
                "process {} serves with version {}, and {path} is version {version}",
                server.process, server.version
            ),
            vec![
                "penstock ctl upgrade   # ends no connection; where it is refused: systemctl restart penstock"
                    .to_owned(),
            ],
        ),
        Some(server) => {
            Finding::ok("binary", format!("{path}, version {version}; process {} serves", server.process))
        }
        None => Finding::ok("binary", format!("{path}, version {version}; no server answers")),
    }
}

fn configuration(configuration: &Configuration) -> Vec<Finding> {
    let Configuration { file, faults } = configuration;
    let mend = format!("penstock check {}", text::shell::word(file));
    match faults.is_empty() {
        true => vec![Finding::ok("configuration", format!("{file} is good"))],
        false => {
            faults.iter().map(|fault| Finding::fault("configuration", fault, vec![mend.clone()])).collect()
        }
    }
}

fn user(user: &User) -> Finding {
    let User { name, standing, named_by } = user;
    let make = vec![format!(
        "useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin {}",
        text::shell::word(name)
    )];
    match (standing, named_by) {
        (Standing::Exists, _) => Finding::ok("user", format!("a server that root starts runs as {name}")),
        (Standing::StaysRoot(why), _) => Finding::fault(
            "user",
            format!("a server that root starts stays root: {why}"),
            vec!["penstock check --privileges FILE   # lists the files that it uses".to_owned()],
        ),
        (Standing::Missing, NamedBy::Configuration) => Finding::fault(
            "user",
            format!("process.user is {name}, and there is no such user: the start is refused"),
            make,
        ),
        (Standing::Missing, NamedBy::Default) => Finding::fault(
            "user",
            format!("there is no user {name}: a server that root starts stays root"),
            make,
        ),
    }
}

fn capability(needed: &Needed) -> Finding {
    let Needed { name, why, given } = needed;
    match given {
        Given::Yes => Finding::ok("capabilities", format!("{name} can be had: {why}")),
        Given::Bounded => Finding::fault(
            "capabilities",
            format!("{name} is needed ({why}), and this machine or container gives it to no process"),
            vec![format!(
                "# start the container with it: docker run --cap-add {}",
                name.trim_start_matches("CAP_")
            )],
        ),
        Given::NotToServer => Finding::fault(
            "capabilities",
            format!(
                "{name} is needed ({why}), and the server that runs does not have it, or gave it up at its start"
            ),
            vec![
                "systemctl restart penstock   # it keeps what its configuration needs at the start"
                    .to_owned(),
                format!(
                    "systemctl edit penstock   # if that is not enough: [Service] AmbientCapabilities={name} CapabilityBoundingSet={name}, each on its line"
                ),
            ],
        ),
        Given::Unknown => Finding::unknown(
            "capabilities",
            format!("{name} is needed ({why}); run this as root to see whether it can be had"),
        ),
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

fn clock(clock: &Clock) -> Finding {
    let ahead = clock.written.and_then(|written| written.duration_since(clock.now).ok());
    match (ahead, clock.kept) {
        // A file system may keep times less exactly, and a package may be made in another time zone.
        (Some(ahead), _) if ahead > DAY => Finding::fault(
            "clock",
            format!(
                "the clock is wrong: by it, this program was written {} from now. Certificates and one-time passwords are judged by it",
                units::elapsed(ahead)
            ),
            vec!["timedatectl set-ntp true   # or install chrony".to_owned()],
        ),
        (_, Some(Kept::Yes)) => Finding::ok("clock", "a program keeps the clock right (NTP or the like)"),
        (_, Some(Kept::No)) => Finding::unknown(
            "clock",
            "the kernel does not know whether its clock is right: `timedatectl set-ntp true`, or chrony, keeps it so",
        ),
        (_, None) => Finding::unknown("clock", "the kernel does not tell whether its clock is kept right"),
    }
}

/// Time before its end in which a certificate is a fault: ACME renews long before.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

fn certificate(certificate: &Certificate, now: SystemTime) -> Finding {
    let Certificate { section, name, not_before, not_after } = certificate;
    let check = "certificate";
    let renew = || vec![format!("penstock ctl certs   # who renews {name}: [acme], certbot, or you")];
    if let Ok(wait) = not_before.duration_since(now) {
        let text = format!(
            "{section}: the certificate for {name} is valid in {} only: it is new, or the clock of this machine is behind",
            units::elapsed(wait)
        );
        return Finding::fault(check, text, vec!["timedatectl   # is the time right?".to_owned()]);
    }
    match not_after.duration_since(now) {
        Err(past) => Finding::fault(
            check,
            format!(
                "{section}: the certificate for {name} has expired {} ago: clients refuse it",
                units::elapsed(past.duration())
            ),
            renew(),
        ),
        Ok(left) if left < SOON => Finding::fault(
            check,
            format!("{section}: the certificate for {name} expires in {}", units::elapsed(left)),
            renew(),
        ),
        Ok(left) => Finding::ok(
            check,
            format!("{section}: the certificate for {name} is valid for {}", units::elapsed(left)),
        ),
    }
}

fn gssapi(gssapi: &Gssapi) -> Finding {
    match (&gssapi.fault, gssapi.use_) {
        (None, _) => Finding::ok("gssapi", "the library for Kerberos (GSSAPI) is there"),
        (Some(fault), Use::Needed) => Finding::fault(
            "gssapi",
            format!("control.kerberos needs GSSAPI: {fault}"),
            vec!["apt install libgssapi-krb5-2".to_owned()],
        ),
        (Some(_), Use::NotNeeded) => Finding::ok(
            "gssapi",
            "GSSAPI is not installed (libgssapi-krb5-2); only log-ins by Kerberos need it",
        ),
    }
}
