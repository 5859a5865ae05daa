//! Certificates from an authority (ACME, RFC 8555). One task per certificate orders it, and renews it when renewal is
//! due.
//! `logic/src/acme.rs` decides when. An issued certificate is written as one file into a certificate directory;
//! listeners watch and serve that directory like any other.
//!
//! The tasks run on the slow runtime. Workers only answer the challenges in `crates/state/src/acme/challenges.rs`.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use config::Config;
use config::types::{Acme, AcmeCertificate};
use instant_acme::{Account, CertificateIdentifier};
use logic::acme::{self as rules, HeldCertificate, Next, OrderFailure, Progress, Reason, Validity, Window};
use rustls_pki_types::Der;
use state::State;
use state::account::{Account as Descriptors, OF_GATE, OF_ORDER, Purpose};
use state::acme::{Key, Phase, RenewalState};
use state::events::{Level, timestamp};
use state::lock::lock;
use tls::Bundle;
use tokio::task::JoinHandle;

mod account;
mod client;
mod dns;
mod fault;
mod gate;
pub mod helper;
mod hooks;
mod kept;
mod order;
mod records;

use client::Client;
use fault::Fault;
pub use hooks::Hooks;
use kept::{Files, on_disk};
use order::{Answers, Limits, Wanted};
use records::Removals;

/// Longest time between two reads of clock and disk: another process may have renewed, or the clock may have jumped.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// Pause while another process orders the same certificate.
const BUSY: Duration = Duration::from_secs(5);

/// Time without requests for renewal suggestions after the authority failed to answer one. Without this pause, a
/// thousand certificates would each wait for a timeout.
const SILENCE: Duration = Duration::from_secs(300);

/// Largest number of parallel orders and renewal-suggestion requests of one section.
pub(crate) const ORDERS_AT_ONCE: usize = 4;

/// Runs the ordering tasks. Dropping the orderer aborts them.
pub struct Orderer {
    state: Arc<State>,
    hooks: Arc<Hooks>,
    sections: HashMap<Arc<str>, Running>,
    removals: Removals,
}

struct Running {
    settings: Acme,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Orderer {
    pub fn new(state: Arc<State>, hooks: Hooks) -> Self {
        Self { state, hooks: Arc::new(hooks), sections: HashMap::new(), removals: Removals::default() }
    }

    /// Aborts all orders, and waits for a few seconds until the DNS records of aborted ones are removed.
    pub(crate) async fn end(&mut self) {
        for (_, mut running) in self.sections.drain() {
            for task in std::mem::take(&mut running.tasks) {
                task.abort();
                // Ends as aborted.
                let _ = task.await;
            }
        }
        self.removals.ended().await;
    }

    /// Starts the tasks of new sections and aborts those of sections that were removed or changed.
    /// Must be called on a tokio runtime.
    pub fn reconcile(&mut self, config: &Config) {
        let is_used = |section: &Acme| {
            let sources = config.tls().filter_map(|tls| tls.acme.as_ref());
            sources.into_iter().any(|source| source.name == section.name)
        };
        let mut before = std::mem::take(&mut self.sections);
        for settings in config.acme.iter().filter(|section| is_used(section)) {
            let running = match before.remove(&settings.name) {
                Some(running) if running.settings == *settings => running,
                _ => self.start(settings),
            };
            self.sections.insert(settings.name.clone(), running);
        }
        let is_there = |section: &str, name: &str| {
            let settings = self.sections.get(section).map(|running| &running.settings);
            settings.is_some_and(|settings| settings.certificates.iter().any(|it| *it.name == *name))
        };
        let mut standings = lock(&self.state.acme.standings);
        let gone: Vec<Key> =
            standings.keys().filter(|(section, name)| !is_there(section, name)).cloned().collect();
        for key in gone {
            standings.remove(&key);
            let subject = subject(&key.0, &key.1);
            self.state.forget_degraded(|degraded| degraded == subject);
        }
    }

    fn start(&self, settings: &Acme) -> Running {
        let section = Arc::new(Section {
            settings: settings.clone(),
            account: tokio::sync::Mutex::new(None),
            places: tokio::sync::Semaphore::new(ORDERS_AT_ONCE),
            turns: self.state.account.clone(),
            hooks: self.hooks.clone(),
            removals: self.removals.clone(),
            silent_until: Mutex::default(),
        });
        let task = |certificate: &AcmeCertificate| {
            let job = Job {
                section: section.clone(),
                files: Files::new(settings, certificate),
                certificate: certificate.clone(),
                state: self.state.clone(),
                subject: subject(&settings.name, &certificate.name),
            };
            tokio::spawn(job.run())
        };
        let mut tasks: Vec<JoinHandle<()>> = settings.certificates.iter().map(task).collect();
        tasks.push(tokio::spawn(clear_away(settings.clone(), self.state.clone())));
        Running { settings: settings.clone(), tasks }
    }
}

/// Removes certificates that no section orders any more, once they have expired. Until they expire, listeners serve
/// them for names that no other certificate covers.
async fn clear_away(settings: Acme, state: Arc<State>) {
    loop {
        let section = settings.clone();
        let removed =
            on_disk(move || Ok((kept::remove_unwanted(&section), kept::remove_unwanted_next(&section))));
        let (expired, next) = removed.await.unwrap_or_default();
        for (names, message) in [
            (expired, "removed: it has expired and is not ordered any more"),
            (next, "the certificate that waited for its TLSA record is removed: it is not ordered any more"),
        ] {
            for name in names {
                state.events.record(Level::Info, subject(&settings.name, &name), message);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn subject(section: &str, name: &str) -> String {
    format!("acme.{section}.{name}")
}

/// State that all certificates of a section share.
struct Section {
    settings: Acme,
    account: tokio::sync::Mutex<Option<Account>>,
    places: tokio::sync::Semaphore,
    /// The account of descriptors. Requests and lock files reserve their descriptors in it.
    turns: Arc<Descriptors>,
    /// Runs the commands of dns-01.
    hooks: Arc<Hooks>,
    removals: Removals,
    /// End of the pause in renewal-suggestion requests after the authority did not answer.
    silent_until: Mutex<Option<Instant>>,
}

impl Section {
    /// Opens the account at the first call. `None` while another process registers one.
    async fn account(&self) -> Result<Option<Account>, (Fault, Option<Duration>)> {
        let mut kept = self.account.lock().await;
        if kept.is_none() {
            let ca = self.settings.ca.clone();
            let turns = self.turns.clone();
            let client =
                on_disk(move || Client::new(ca.as_deref(), turns)).await.map_err(|fault| (fault, None))?;
            let opening = account::open(&self.settings, client);
            let (account, retry_after) = client::with_retry_after(opening).await;
            *kept = account.map_err(|fault| (fault, retry_after))?;
        }
        Ok(kept.clone())
    }

    /// Makes the next order read the account files and the authority's directory again after a failure: an operator may
    /// have repaired the files, and the authority's URLs may have changed.
    async fn forget_account(&self) {
        *self.account.lock().await = None;
    }
}

/// State of the task that orders and renews one certificate.
struct Job {
    section: Arc<Section>,
    certificate: AcmeCertificate,
    files: Files,
    state: Arc<State>,
    subject: String,
}

const NONE_YET: &str = "there is no certificate for these names yet";

/// Result of one order.
enum Done {
    Issued,
    /// Another process orders the certificate now, or has already ordered it.
    Elsewhere,
}

/// Renewal time that the authority suggests for the certificate `leaf` (RFC 9773).
struct Suggestion {
    leaf: Vec<u8>,
    window: Option<Window>,
    ask_again: SystemTime,
}

impl Job {
    async fn run(self) {
        let files = self.files.clone();
        // An unwritable directory is not reported here: the first order reports it.
        let (mut progress, mut reason) = on_disk(move || Ok(files.progress())).await.unwrap_or_default();
        let mut suggestion: Option<Suggestion> = None;
        if self.held().await.is_none() {
            let why = reason.as_deref().unwrap_or("it is being ordered");
            self.state.degrade(&self.subject, &format!("{NONE_YET}: {why}"));
        }
        loop {
            let bundle = self.held().await;
            let phase = if progress.failures == 0 { Phase::Waiting } else { Phase::Failed };
            if let Some(bundle) = &bundle {
                let next = progress.next(SystemTime::now(), Some(held(bundle, suggestion.as_ref())));
                self.publish(phase, next, &progress, reason.as_deref());
                self.ask_for_suggestion(bundle, &mut suggestion).await;
            }
            let now = SystemTime::now();
            let held = bundle.as_ref().map(|bundle| held(bundle, suggestion.as_ref()));
            let next = progress.next(now, held);
            self.publish(phase, next, &progress, reason.as_deref());
            if bundle.is_some() && progress.failures == 0 {
                self.state.restore(&self.subject);
            }
            if let Ok(wait) = next.at.duration_since(now)
                && !wait.is_zero()
            {
                let ask_again = suggestion.as_ref().and_then(|it| it.ask_again.duration_since(now).ok());
                tokio::time::sleep(wait.min(ask_again.unwrap_or(LOOK_AGAIN)).min(LOOK_AGAIN)).await;
                continue;
            }
            self.publish(Phase::Ordering, next, &progress, reason.as_deref());
            match self.order(bundle.as_ref(), next.reason).await {
                Ok(Done::Elsewhere) => tokio::time::sleep(BUSY).await,
                Ok(Done::Issued) => {
                    progress.issued(SystemTime::now());
                    reason = None;
                    suggestion = None;
                    self.state.acme.issued.fetch_add(1, Relaxed);
                    self.note(&progress, None).await;
                }
                Err((fault, retry_after)) => {
                    self.section.forget_account().await;
                    let now = SystemTime::now();
                    progress.failed(now, fault.setback(), retry_after, fastrand::f64());
                    let words = fault.to_string();
                    self.say_failed(bundle.as_ref(), &words, progress.not_before.unwrap_or(now));
                    self.note(&progress, Some(&words)).await;
                    reason = Some(words);
                }
            }
        }
    }

    /// Reads the installed certificate. `None` unless it covers all configured names.
    async fn held(&self) -> Option<Bundle> {
        let files = self.files.clone();
        let bundle = on_disk(move || Ok(files.bundle())).await.ok().flatten()?;
        self.certificate.names.iter().all(|name| bundle.facts.names.contains(name)).then_some(bundle)
    }

    /// Asks the authority for a renewal suggestion (RFC 9773) if the time for the next question has come.
    async fn ask_for_suggestion(&self, bundle: &Bundle, suggestion: &mut Option<Suggestion>) {
        let now = SystemTime::now();
        let before = suggestion.take().filter(|before| before.leaf == bundle.leaf);
        let is_fresh = |before: &Suggestion| {
            let left = before.ask_again.duration_since(now);
            left.is_ok_and(|left| left <= rules::LONGEST_PAUSE)
        };
        if before.as_ref().is_some_and(is_fresh) {
            *suggestion = before;
            return;
        }
        let (mut window, mut asked) = (before.and_then(|before| before.window), None);
        match self.suggested(bundle).await {
            Ok((now_suggested, again)) => {
                if now_suggested.is_some() && now_suggested != window {
                    tracing::debug!(subject = self.subject, "the authority suggests {now_suggested:?}");
                }
                (window, asked) = (now_suggested, Some(again));
            }
            Err(why) => tracing::debug!(subject = self.subject, "no suggestion: {why}"),
        }
        let ask_again = now + rules::poll_again(asked, validity(bundle).lifetime());
        *suggestion = Some(Suggestion { leaf: bundle.leaf.clone(), window, ask_again });
    }

    async fn suggested(&self, bundle: &Bundle) -> Result<(Option<Window>, Duration), String> {
        let Some(id) = identifier(bundle) else { return Err("it names no issuer's key".to_owned()) };
        let _place = self.section.places.acquire().await.map_err(|error| error.to_string())?;
        let _turn = self.section.turns.turn(Purpose::Order, OF_ORDER).await;
        if lock(&self.section.silent_until).is_some_and(|until| Instant::now() < until) {
            return Err("the authority does not answer".to_owned());
        }
        let failed = |fault: Fault| {
            let is_authority = matches!(fault, Fault::Authority { .. });
            if is_authority && fault.setback() == OrderFailure::Unavailable {
                *lock(&self.section.silent_until) = Some(Instant::now() + SILENCE);
            }
            fault.to_string()
        };
        let account = self.section.account().await.map_err(|(fault, _)| failed(fault))?;
        let Some(account) = account else { return Err("another process is registering".to_owned()) };
        let info = account.renewal_info(&id).await;
        let doing = "ask when to renew";
        let (info, again) = info.map_err(|source| failed(Fault::Authority { doing, source }))?;
        let window = Window {
            start: SystemTime::from(info.suggested_window.start),
            end: SystemTime::from(info.suggested_window.end),
        };
        // RFC 9773 section 4.2: ignore a window that does not start before its end.
        Ok(((window.start < window.end).then_some(window), again))
    }

    async fn order(
        &self,
        before: Option<&Bundle>,
        reason: Reason,
    ) -> Result<Done, (Fault, Option<Duration>)> {
        // At most `ORDERS_AT_ONCE` orders of a section run in parallel.
        let Ok(place) = self.section.places.acquire().await else { return Ok(Done::Elsewhere) };
        let turn = self.section.turns.turn(Purpose::Order, OF_ORDER).await;
        let files = self.files.clone();
        let locked = on_disk(move || files.begin());
        let alone = |fault| (fault, None);
        let Some(_lock) = locked.await.map_err(alone)? else { return Ok(Done::Elsewhere) };
        // Another process may have installed the certificate while this task waited for the lock.
        if self.held().await.map(|bundle| bundle.leaf) != before.map(|bundle| bundle.leaf.clone()) {
            return Ok(Done::Elsewhere);
        }
        let settings = &self.section.settings;
        if let Some(text) = self.staged(before).await {
            return self.install(text, before, (turn, place)).await.map_err(alone);
        }
        let Some(account) = self.section.account().await? else {
            return Ok(Done::Elsewhere);
        };
        let wanted = Wanted {
            certificate: &self.certificate,
            challenge: &settings.challenge,
            profile: settings.profile.as_deref(),
            replaces: before.and_then(identifier),
            limits: Limits::USUAL,
        };
        let words = match reason {
            Reason::Missing => "ordering",
            Reason::Suggested | Reason::Age => "renewing",
        };
        let names = self.certificate.names.join(", ");
        self.state.events.record(Level::Info, &self.subject, format!("{words}: {names}"));
        let answers = Answers {
            challenges: self.state.acme.challenges.clone(),
            descriptors: self.section.turns.clone(),
            hooks: self.section.hooks.clone(),
            removals: self.section.removals.clone(),
        };
        let (text, retry_after) = client::with_retry_after(order::order(&account, &wanted, &answers)).await;
        let text = text.map_err(|fault| (fault, retry_after))?;
        self.install(text, before, (turn, place)).await.map_err(alone)
    }

    /// The certificate that was issued before and waits for its TLSA record.
    async fn staged(&self, before: Option<&Bundle>) -> Option<String> {
        self.section.settings.tlsa.as_ref()?;
        let (files, names) = (self.files.clone(), self.certificate.names.clone());
        let text = on_disk(move || Ok(files.staged(&names, SystemTime::now()))).await.ok().flatten()?;
        let leaf = Bundle::read(text.as_bytes()).ok()?.leaf;
        before.is_none_or(|before| before.leaf != leaf).then_some(text)
    }

    /// Puts an issued certificate in use; with TLSA records, through the gate.
    /// `before_gate` is held until the lock file is counted for the gate.
    async fn install(
        &self,
        text: String,
        before: Option<&Bundle>,
        before_gate: impl Send,
    ) -> Result<Done, Fault> {
        let mut passed = None;
        // The lock file stays open, perhaps for twice a TTL of a day.
        let _turn = match &self.section.settings.tlsa {
            Some(_) => Some(self.section.turns.turn(Purpose::Gate, OF_GATE).await),
            None => None,
        };
        drop(before_gate);
        if let Some(settings) = &self.section.settings.tlsa {
            let (files, staged) = (self.files.clone(), text.clone());
            on_disk(move || files.stage(&staged)).await?;
            let tell = |what: String| self.state.events.record(Level::Info, &self.subject, what);
            let before = match before {
                Some(_) => gate::Before::Certificate,
                None => gate::Before::Nothing,
            };
            passed = gate::pass(settings, &text, before, &self.state.account, tell).await?;
        }
        let files = self.files.clone();
        let until = on_disk(move || {
            files.install(&text).map_err(Fault::not_installed)?;
            files.unstage();
            Ok(files.bundle().map(|bundle| bundle.facts.not_after))
        });
        let until = until.await?.map(timestamp).unwrap_or_default();
        self.state.events.record(Level::Info, &self.subject, format!("issued: valid until {until}"));
        if let Some(passed) = passed
            && let Err(fault) = passed.left().await
        {
            let message = format!(
                "the record of the old certificate is left: {fault}; the next renewal removes it, or `penstock dns push`"
            );
            self.state.events.record(Level::Warning, &self.subject, message);
        }
        Ok(Done::Issued)
    }

    fn say_failed(&self, before: Option<&Bundle>, words: &str, again: SystemTime) {
        self.state.acme.failed.fetch_add(1, Relaxed);
        let again = timestamp(again);
        let rest = match before {
            Some(bundle) => {
                format!("the present certificate stays in use, until {}", timestamp(bundle.facts.not_after))
            }
            None => NONE_YET.to_owned(),
        };
        self.state.events.record(Level::Error, &self.subject, format!("{words}; next try at {again}"));
        self.state.degrade(&self.subject, &format!("{rest}: {words}"));
    }

    /// Saves the progress of the orders. A failure to save is ignored: the next order reports the same disk fault.
    async fn note(&self, progress: &Progress, reason: Option<&str>) {
        let (files, progress, reason) = (self.files.clone(), *progress, reason.map(ToOwned::to_owned));
        if let Err(fault) = on_disk(move || files.note(&progress, reason.as_deref())).await {
            tracing::warn!(subject = self.subject, "{fault}");
        }
    }

    fn publish(&self, phase: Phase, next: Next, progress: &Progress, reason: Option<&str>) {
        let standing = RenewalState {
            names: self.certificate.names.clone(),
            phase,
            next,
            failures: progress.failures,
            reason: reason.map(ToOwned::to_owned),
        };
        let key = (self.section.settings.name.clone(), self.certificate.name.clone());
        lock(&self.state.acme.standings).insert(key, standing);
    }
}

fn validity(bundle: &Bundle) -> Validity {
    Validity { from: bundle.facts.not_before, until: bundle.facts.not_after }
}

fn held(bundle: &Bundle, suggestion: Option<&Suggestion>) -> HeldCertificate {
    // The hash of the certificate is stable across restarts and machines, and changes with each renewal.
    let place = logic::balance::hash_bytes(0, &bundle.leaf) as f64 / u64::MAX as f64;
    let suggested = suggestion.filter(|it| it.leaf == bundle.leaf).and_then(|it| it.window);
    HeldCertificate { validity: validity(bundle), suggested, place }
}

/// Builds the identifier of the certificate for renewal information (RFC 9773 section 4.1).
fn identifier(bundle: &Bundle) -> Option<CertificateIdentifier<'static>> {
    let mut serial = bundle.facts.serial.clone();
    // DER encodes a positive integer whose first bit is set with a leading zero byte.
    if serial.first().is_none_or(|first| first & 0x80 != 0) {
        serial.insert(0, 0);
    }
    let key = bundle.authority_key.as_deref()?;
    Some(CertificateIdentifier::new(Der::from_slice(key), Der::from_slice(&serial)).into_owned())
}
