use std::net::SocketAddr;

use super::*;

fn entries(texts: &[&str]) -> Vec<Entry> {
    texts.iter().map(|text| text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))).collect()
}

fn list(default: Verdict, texts: &[&str]) -> AccessList {
    AccessList::new("test", default, &entries(texts), Geography::None).0
}

fn ip(text: &str) -> Peer {
    Peer::Ip(SocketAddr::new(text.parse().unwrap(), 4711))
}

#[test]
fn the_first_entry_that_matches_decides_and_the_default_for_the_rest() {
    let list = list(
        Verdict::Deny,
        &["deny 10.1.2.3", "permit 10.1.0.0/16", "deny 10.0.0.0/8", "permit 2001:db8::/32", "permit unix"],
    );
    for (address, verdict) in [
        ("10.1.2.3", Verdict::Deny),
        ("10.1.2.2", Verdict::Permit),
        ("10.1.255.255", Verdict::Permit),
        ("10.2.0.0", Verdict::Deny),
        ("11.0.0.0", Verdict::Deny),
        ("::ffff:10.1.0.1", Verdict::Permit),
        ("2001:db8:ffff::1", Verdict::Permit),
        ("2001:db9::", Verdict::Deny),
    ] {
        assert_eq!(list.verdict(&ip(address)), verdict, "{address}");
    }
    assert_eq!(list.verdict(&Peer::Unix), Verdict::Permit);
    assert_eq!((list.len(), list.name()), (5, "test"));
}

#[test]
fn the_ends_of_the_address_space_have_verdicts() {
    let list = list(Verdict::Permit, &["deny 0.0.0.0/1", "deny 255.255.255.255", "deny ::", "deny ff00::/8"]);
    for denied in ["0.0.0.0", "127.255.255.255", "255.255.255.255", "::", "ffff:ffff::ffff"] {
        assert_eq!(list.verdict(&ip(denied)), Verdict::Deny, "{denied}");
    }
    for permitted in ["128.0.0.0", "255.255.255.254", "::1"] {
        assert_eq!(list.verdict(&ip(permitted)), Verdict::Permit, "{permitted}");
    }
    assert_eq!(list.verdict(&Peer::Unix), Verdict::Permit, "a Unix client matches no network");
}

#[test]
fn an_entry_that_can_never_decide_is_named_with_the_one_before_it() {
    let all = entries(&[
        "permit 10.0.0.0/8",
        "deny 10.1.0.0/16",
        "permit 10.2.0.0/16",
        "permit unix",
        "deny unix",
        "deny 11.0.0.0/8",
        "permit 11.0.0.0/8",
    ]);
    let (_, shadowed) = AccessList::new("test", Verdict::Deny, &all, Geography::None);
    let pairs: Vec<_> = shadowed.iter().map(|one| (one.entry, one.by)).collect();
    assert_eq!(pairs, [(1, 0), (4, 3), (6, 5)]);
}

#[test]
fn a_compiled_list_agrees_with_a_walk_through_its_entries() {
    let mut random = 1_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    for round in 0..300 {
        let default = if round % 2 == 0 { Verdict::Permit } else { Verdict::Deny };
        let all: Vec<Entry> = (0..next() % 40)
            .map(|_| {
                let verdict = if next() % 2 == 0 { Verdict::Permit } else { Verdict::Deny };
                // Few bits differ, so that networks hold each other often.
                let bits = (next() % 64) as u8;
                let text = match next() % 3 {
                    0 => format!("10.0.0.{bits}/{}", 26 + next() % 7),
                    1 => format!("255.255.255.{}/{}", 192 + bits, 26 + next() % 7),
                    _ => format!(
                        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff{:02x}/{}",
                        192 + bits,
                        122 + next() % 7
                    ),
                };
                Entry {
                    verdict,
                    who: Who::Peers(PeerSetEntry::Network(text.parse::<IpNet>().unwrap().trunc())),
                }
            })
            .collect();
        let (compiled, _) = AccessList::new("test", default, &all, Geography::None);
        for last in 0..=255_u8 {
            for address in [
                format!("10.0.0.{last}"),
                format!("255.255.255.{last}"),
                format!("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff{last:02x}"),
            ] {
                let address: IpAddr = address.parse().unwrap();
                let holds = |entry: &&Entry| match entry.who {
                    Who::Peers(PeerSetEntry::Network(network)) => network.contains(&address),
                    Who::Peers(PeerSetEntry::Unix) | Who::Country(_) => false,
                };
                let walked = all.iter().find(holds).map_or(default, |entry| entry.verdict);
                let peer = Peer::Ip(SocketAddr::new(address, 1));
                assert_eq!(compiled.verdict(&peer), walked, "{address} in {all:?}, default {default}");
            }
        }
    }
}

#[test]
fn a_hundred_thousand_entries_take_at_most_two_addresses_each() {
    let all: Vec<Entry> = (0..100_000_u32)
        .map(|n| {
            let address = std::net::Ipv4Addr::from_bits(n * 40_000);
            Entry {
                verdict: Verdict::Deny,
                who: Who::Peers(PeerSetEntry::Network(IpAddr::from(address).into())),
            }
        })
        .collect();
    let (list, shadowed) = AccessList::new("test", Verdict::Permit, &all, Geography::None);
    assert!(list.v4.0.len() <= 200_000 && shadowed.is_empty());
    assert_eq!(list.verdict(&ip("0.0.156.64")), Verdict::Deny);
    assert_eq!(list.verdict(&ip("0.0.156.65")), Verdict::Permit);
}

#[test]
fn lists_that_decide_alike_have_one_digest() {
    let one = list(Verdict::Deny, &["permit 10.0.0.0/9", "permit 10.128.0.0/9"]);
    let other = list(Verdict::Deny, &["permit 10.0.0.0/8", "deny 11.0.0.0/8"]);
    assert_eq!(one.digest(), other.digest());
    for different in [
        list(Verdict::Permit, &["permit 10.0.0.0/8"]),
        list(Verdict::Deny, &["permit 10.0.0.0/8", "permit unix"]),
        list(Verdict::Deny, &["permit 10.0.0.0/7"]),
    ] {
        assert_ne!(one.digest(), different.digest());
    }
}

#[test]
fn an_entry_prints_as_it_is_written_and_a_wrong_one_says_why() {
    for text in ["permit 10.0.0.0/8", "deny 2001:db8::7", "permit unix"] {
        assert_eq!(text.parse::<Entry>().unwrap().to_string(), text);
    }
    assert_eq!("  deny\t 10.0.0.1 ".parse::<Entry>().unwrap().to_string(), "deny 10.0.0.1");
    let message = |text: &str| text.parse::<Entry>().unwrap_err().to_string();
    assert!(message("allow 10.0.0.0/8").contains("neither `permit` nor `deny`"));
    assert!(message("10.0.0.0/8").contains("no `permit` or `deny` before it"));
    assert!(message("deny").contains("no address after it"));
    assert!(message("deny all").contains("`all` is not an IP address"));
    assert!(message("deny 10.0.0.1/8").contains("write 10.0.0.0/8"));
    assert!(message("deny 10.0.0.0/8 10.1.0.0/16").contains("is not an IP address"));
    assert!(message(&"x".repeat(10_000)).len() < 200);
}

#[test]
fn a_file_has_an_entry_on_each_line_and_faults_have_line_numbers() {
    let text = "# office\r\npermit 10.0.0.0/8 # all of it\n\n  deny 10.0.0.7\nblock 10.0.0.8\n#end\ndeny ::1";
    let mut faults = Vec::new();
    let entries = parse_lines(text, Geography::None, |line, error| faults.push((line, error)));
    let shown: Vec<_> = entries.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["permit 10.0.0.0/8", "deny 10.0.0.7", "deny ::1"]);
    assert_eq!(faults, [(5, EntryError::NoVerdict("block".into()))]);
}

fn countries(networks: &[(&str, &str)]) -> Countries {
    let mut countries = Countries::default();
    for (network, country) in networks {
        countries.add(country.parse().unwrap(), network.parse().unwrap());
    }
    countries
}

#[test]
fn an_entry_of_a_country_holds_its_networks_and_the_first_entry_decides() {
    let countries = countries(&[
        ("10.0.0.0/25", "DE"),
        ("10.0.0.128/25", "DE"),
        ("10.0.1.0/24", "FR"),
        ("10.0.2.0/24", "DE"),
        ("2001:db8::/33", "DE"),
    ]);
    let networks = |country: &str| countries.networks(country.parse().unwrap()).unwrap().len();
    assert_eq!((networks("DE"), networks("FR")), (3, 1), "both halves are one network");
    let all = entries(&["permit 10.0.2.7", "deny country:de", "permit 10.0.2.8"]);
    let geography = Geography::Known(&countries);
    assert!(all.iter().all(|entry| geography.check(entry).is_ok()));
    let (list, shadowed) = AccessList::new("test", Verdict::Permit, &all, geography);
    assert_eq!(shadowed, [Shadowed { entry: 2, by: 1 }]);
    for (address, country, verdict, entry) in [
        ("10.0.0.200", Some("DE"), Verdict::Deny, Some("deny country:DE")),
        ("10.0.1.1", Some("FR"), Verdict::Permit, None),
        ("10.0.2.7", Some("DE"), Verdict::Permit, Some("permit 10.0.2.7")),
        ("10.0.2.8", Some("DE"), Verdict::Deny, Some("deny country:DE")),
        ("10.0.3.1", None, Verdict::Permit, None),
        ("::ffff:10.0.0.1", Some("DE"), Verdict::Deny, Some("deny country:DE")),
        ("2001:db8::1", Some("DE"), Verdict::Deny, Some("deny country:DE")),
        ("2001:db8:8000::1", None, Verdict::Permit, None),
    ] {
        let peer = ip(address);
        let found = peer.ip().and_then(|ip| countries.of(ip));
        assert_eq!(found.map(|country| country.to_string()).as_deref(), country, "{address}");
        assert_eq!(list.verdict(&peer), verdict, "{address}");
        let deciding = list.deciding(&peer, found).map(|entry| entry.to_string());
        assert_eq!(deciding.as_deref(), entry, "{address}");
    }
}

#[test]
fn a_country_that_is_not_known_is_no_entry() {
    let parse = |text: &str| text.parse::<Entry>();
    assert_eq!(parse("deny country:DEU"), Err(EntryError::NotACountry("DEU".into())));
    assert_eq!(parse("deny country:"), Err(EntryError::NotACountry("".into())));
    assert_eq!(parse("country:DE"), Err(EntryError::OnlyAddress("country:DE".into())));
    let country: Country = "de".parse().unwrap();
    let entry = parse("deny country:DE").unwrap();
    assert_eq!(Geography::None.check(&entry), Err(EntryError::NoDatabase(country)));
    let known = countries(&[("10.0.0.0/8", "FR")]);
    assert_eq!(Geography::Known(&known).check(&entry), Err(EntryError::UnknownCountry(country)));
    assert_eq!(Geography::Broken.check(&entry), Ok(()));
    let mut faults = Vec::new();
    let text = "deny 10.0.0.1\ndeny country:DE\n";
    assert_eq!(parse_lines(text, Geography::None, |line, error| faults.push((line, error))).len(), 1);
    assert_eq!(faults, [(2, EntryError::NoDatabase(country))]);
}
