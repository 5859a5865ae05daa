//! SCRAM-SHA-256: a server that gets any two messages lets no client in, and a client that gets any two messages believes no
//! server, because neither side of this exchange knows the password of the other.
#![no_main]

use std::num::NonZeroU32;
use std::sync::LazyLock;

use access::Mechanism;
use access::sasl::gs2::{BindingFlag, Channel, TLS_EXPORTER};
use access::sasl::scram::Client;
use access::sasl::{Credential, Login, Offer, Step};
use libfuzzer_sys::fuzz_target;

static CREDENTIAL: LazyLock<Credential> = LazyLock::new(|| {
    let least = NonZeroU32::new(access::sasl::LEAST_ITERATIONS).expect("it is not 0");
    Credential::derive("a password that no input has", b"a salt of sixteen", least).expect("it is a password")
});

fuzz_target!(|messages: &[u8]| {
    let mut parts = messages.splitn(3, |byte| *byte == b'\n');
    let (kind, first) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let second = parts.next().unwrap_or_default();
    let offer = Offer {
        mechanisms: vec![Mechanism::ScramSha256Plus, Mechanism::ScramSha256],
        channel: Channel::default().with(TLS_EXPORTER, vec![7; 32]),
        external: None,
    };
    let plus = kind.first().is_some_and(|byte| byte % 2 == 0);
    let name = if plus { "SCRAM-SHA-256-PLUS" } else { "SCRAM-SHA-256" };
    if let Ok(mut login) = Login::begin(name, &offer) {
        if let Ok(Step::NeedsCredential(_)) = login.response(first) {
            let _ = login.credential(Ok(&CREDENTIAL), "nonce");
            assert!(login.response(second).is_err(), "the password is not known");
            assert!(login.response(b"").is_err(), "a log-in that failed has ended");
        }
    }
    // A challenge with many iterations is refused by time alone, and takes as long as it says.
    if first.ends_with(b",i=4096") {
        let client = Client::new("user", None, BindingFlag::Cannot, &[], "nonce");
        if let Ok(awaiting) = client.and_then(|client| client.respond(first, "another password")) {
            assert!(awaiting.verify(second).is_err(), "the server does not know the password");
        }
    }
});
