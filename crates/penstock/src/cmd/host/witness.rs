//! Witnesses: trusted hosts ask the new host for its key from their own networks, and must see the same key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hosts::fleet::ending::Ending;
use hosts::identity::{FEWEST_WITNESSES, HostFile, KnownHosts, Name, Root, WitnessError, agree};
use hosts::ssh::key::PublicKey;
use ssh::identity::Identities;
use ssh::identity::enrol::Claim;
use ssh::{Client, Event, Exec, Keys, Offered, Session, Target};

use super::known::known;
use super::place::Place;
use crate::output::{Failure, plain};

/// Size limit of ssh-keyscan's output, in bytes.
const LONGEST: usize = 64 * 1024;
/// Timeout of ssh-keyscan in seconds.
const PATIENCE: u32 = 5;
/// Time limit of one command on a witness.
const LIMIT: Duration = Duration::from_secs(10);
/// Key types in order of preference. Each query is a connection to the new host that ends before a log-in, which
/// servers penalize (PerSourcePenalties): the next type is queried only if the host has no key of the previous one.
const TYPES: [&str; 3] = ["ed25519", "ecdsa", "rsa"];

/// Asks the witnesses `names` for the key of the host `name`, which they reach as `target`.
pub(super) async fn ask(
    identities: &Arc<Identities>,
    names: &[Name],
    name: &Name,
    target: &Target,
) -> Result<Claim, Failure> {
    // Two names of one host are one witness.
    let mut witnesses: BTreeMap<&Name, &HostFile> = BTreeMap::new();
    for witness in names {
        let host = known(identities.index(), witness)?;
        if host.name() == name {
            return Err(Failure::usage(format!("{witness} cannot be its own witness")));
        }
        witnesses.insert(host.name(), host);
    }
    if witnesses.len() < FEWEST_WITNESSES {
        return Err(Failure::usage(WitnessError::TooFew));
    }
    let client = Client::new(identities.clone(), Arc::new(Keys::new()));
    let mut seen = BTreeMap::new();
    let mut types = &TYPES[..];
    for host in witnesses.values() {
        let witness = Place::default().target(host.name(), Some(host), identities.index())?;
        let (found, keys) = through(&client, &witness, host, target, types).await.map_err(|why| {
            Failure::runtime(format!("the witness {}: {}; nothing was enrolled", host.name(), plain(&why)))
        })?;
        // All further witnesses are asked for the same type.
        types = found;
        seen.insert(host.name().clone(), keys);
    }
    let keys = agree(&seen).map_err(Failure::runtime)?;
    Ok(Claim::Witness(seen.into_keys().collect(), keys))
}

/// Asks one witness for the keys of the first of `types` that the host has. Returns that type and the keys.
async fn through<'t>(
    client: &Client,
    witness: &Target,
    host: &HostFile,
    target: &Target,
    types: &'t [&'static str],
) -> Result<(&'t [&'static str], Vec<PublicKey>), String> {
    let session = client.connect(witness, &|_| {}).await.map_err(|failure| failure.detail)?;
    if let Some(Offered::Key(key)) = session.facts().identity
        && host.pin(&key).is_some_and(|pin| pin.root() == Root::FirstUse)
    {
        return Err(format!(
            "its own key is not proved, it was trusted on first use: penstock host add {} --fingerprint SHA256:...",
            host.name()
        ));
    }
    // Safe in a shell command: the target's name is valid here (no quotes, no white space), or an address.
    let address = target.addresses.known.first().map_or_else(|| target.host.clone(), ToString::to_string);
    let address: Name = address.parse().map_err(|error| format!("{error}"))?;
    let mut complaint = String::new();
    for kind in types.chunks(1) {
        let command = format!("ssh-keyscan -T {PATIENCE} -t {} -p {} {address}", kind[0], target.port);
        let answer = tokio::time::timeout(LIMIT, run(&session, &command));
        let (keys, said) = answer
            .await
            .map_err(|_| format!("ssh-keyscan there did not end within {} s", LIMIT.as_secs()))??;
        if !keys.is_empty() {
            session.close().await;
            return Ok((kind, keys));
        }
        complaint = said;
    }
    session.close().await;
    let last = complaint.lines().last().filter(|line| !line.trim().is_empty());
    Err(format!("ssh-keyscan there saw no key: {}", last.unwrap_or("it says nothing")))
}

/// Runs a command. Returns the keys on its standard output, and its standard error.
async fn run(session: &Session, command: &str) -> Result<(Vec<PublicKey>, String), String> {
    let mut process = session.exec(command, &Exec::default()).await.map_err(|failure| failure.detail)?;
    let (mut out, mut complaint) = (Vec::new(), Vec::new());
    loop {
        match process.next().await {
            Some(Event::Stdout(bytes)) if out.len() + bytes.len() <= LONGEST => out.extend_from_slice(&bytes),
            Some(Event::Stderr(bytes)) if complaint.len() + bytes.len() <= LONGEST => {
                complaint.extend_from_slice(&bytes)
            }
            Some(Event::Ended(Ending::Failed(failure))) => return Err(failure.detail),
            Some(Event::Ended(_)) | None => break,
            Some(Event::Started) => {}
            Some(_) => return Err("ssh-keyscan there printed too much".into()),
        }
    }
    let lines = KnownHosts::parse(&String::from_utf8_lossy(&out)).lines;
    Ok((lines.into_iter().map(|line| line.key).collect(), String::from_utf8_lossy(&complaint).into_owned()))
}
