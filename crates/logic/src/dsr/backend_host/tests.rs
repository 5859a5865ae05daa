use std::net::IpAddr;

use super::persist::{MARK, Persist, files};
use super::settings::{Set, changes, usual};
use super::setup::{Step, script, steps, tunnel_steps};
use super::tunnel::{Lacks, findings, rules, segment, segment_of};
use super::undo::{Before, Changed, Record, Tunnel, undo};
use super::verify::{Listening, address, settings};
use super::*;
use crate::dsr::finding::Finding;

const VIP: &str = "192.0.2.10";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn facts(values: &[(&str, Key, u32)]) -> Facts {
    let settings = values.iter().map(|(conf, key, value)| ((conf.to_string(), *key), *value)).collect();
    Facts { interfaces: vec!["eth0".to_owned()], settings, ..Facts::default() }
}

fn with(mut facts: Facts, interface: &str, vip: &str, prefix: u8) -> Facts {
    facts.addresses.push(Address { interface: interface.to_owned(), ip: ip(vip), prefix });
    facts
}

fn faults(findings: &[Finding]) -> Vec<&str> {
    findings.iter().filter(|one| one.is_fault()).map(|one| one.check).collect()
}

#[test]
fn an_address_of_clients_is_read_with_and_without_its_port() {
    let read = |text: &str| text.parse::<VipText>();
    assert_eq!(read("192.0.2.10"), Ok(VipText { ip: ip(VIP), port: None }));
    assert_eq!(read("192.0.2.10:80"), Ok(VipText { ip: ip(VIP), port: Some(80) }));
    for text in ["2001:db8::10", "[2001:db8::10]"] {
        assert_eq!(read(text), Ok(VipText { ip: ip("2001:db8::10"), port: None }));
    }
    assert_eq!(read("[2001:db8::10]:53").unwrap().port, Some(53));
    for text in
        ["", "x", "192.0.2", "192.0.2.10/32", "192.0.2.10:", "192.0.2.10:65536", "[192.0.2.10", "eth0"]
    {
        assert_eq!(read(text), Err(VipError::NoAddress), "{text}");
    }
    assert_eq!(read("192.0.2.10:0"), Err(VipError::NoPort));
    for text in
        ["0.0.0.0", "127.0.0.1", "::", "::1", "fe80::1", "224.0.0.1", "255.255.255.255", "::ffff:192.0.2.10"]
    {
        assert_eq!(read(text), Err(VipError::NotForClients), "{text}");
    }
}

#[test]
fn the_larger_value_of_all_and_the_interface_counts_and_what_is_too_large_is_made_smaller() {
    use Key::{ArpAnnounce, ArpIgnore};
    let changed = |values: &[(&str, Key, u32)], conf| {
        let all = changes(&facts(values), conf);
        all.iter().map(Set::command).collect::<Vec<_>>()
    };
    let all = ["sysctl -w net.ipv4.conf.all.arp_ignore=1", "sysctl -w net.ipv4.conf.all.arp_announce=2"];
    assert_eq!(changed(&[], "all"), all);
    assert_eq!(changed(&[], "eth0"), all.map(|command| command.replace("all", "eth0")));
    assert!(changed(&[("all", ArpIgnore, 2), ("eth0", ArpAnnounce, 2)], "all").is_empty());
    // Of these no machine could find the server, or the kernel would answer for the address.
    for value in [3, 8] {
        assert_eq!(
            changed(&[("eth0", ArpIgnore, value), ("all", ArpAnnounce, 2)], "all"),
            ["sysctl -w net.ipv4.conf.eth0.arp_ignore=1"]
        );
        assert_eq!(changed(&[("all", ArpIgnore, value), ("all", ArpAnnounce, 2)], "eth0"), [all[0]]);
    }
}

#[test]
fn the_strict_filter_matters_where_the_way_back_leads_elsewhere() {
    let good = [("all", Key::ArpIgnore, 1), ("all", Key::ArpAnnounce, 2), ("all", Key::RpFilter, 1)];
    let mut facts = facts(&good);
    assert!(faults(&settings(&facts, "all")).is_empty());
    facts.default_routes = vec!["eth0".to_owned()];
    assert!(faults(&settings(&facts, "all")).is_empty());
    facts.default_routes = vec!["eth1".to_owned()];
    let found = settings(&facts, "all");
    assert_eq!(faults(&found), ["rp-filter"]);
    assert_eq!(found[2].mend, ["sysctl -w net.ipv4.conf.eth0.rp_filter=2"]);
    facts.settings.insert(("all".to_owned(), Key::RpFilter), 2);
    assert!(faults(&settings(&facts, "all")).is_empty());
}

#[test]
fn each_fault_of_an_address_has_the_command_that_mends_it() {
    let vip = Vip { ip: ip(VIP), service: Some((80, Transports::Tcp)) };
    let bare = facts(&[]);
    let found = address(&bare, &vip, None);
    assert_eq!(found[0].mend, ["ip address add 192.0.2.10/32 dev lo"]);
    assert_eq!(faults(&found), ["loopback"], "the port cannot be told: {found:?}");
    let good = with(bare.clone(), "lo", VIP, 32);
    assert!(faults(&address(&good, &vip, Some(Listening::Yes))).is_empty());
    assert_eq!(faults(&address(&good, &vip, Some(Listening::No))), ["port"]);
    let wide = with(bare, "lo", VIP, 24);
    assert_eq!(
        address(&wide, &vip, None)[0].mend,
        ["ip address add 192.0.2.10/32 dev lo", "ip address del 192.0.2.10/24 dev lo"]
    );
    let own = with(good.clone(), "eth0", VIP, 24);
    let found = address(&own, &vip, Some(Listening::Yes));
    assert!(found[1].text.contains("192.0.2.10 is the only IPv4 address of eth0"), "{found:?}");
    assert!(found[1].mend.iter().all(|line| line.starts_with('#')), "nothing deletes it: {found:?}");
    let elsewhere = with(with(good, "eth0", VIP, 24), "eth0", "192.0.2.9", 24);
    assert_eq!(verify::own_address(&elsewhere, ip(VIP)), None);
    let found = address(&elsewhere, &vip, Some(Listening::Yes));
    assert_eq!(faults(&found), ["other-interface"]);
    assert_eq!(found[1].mend, ["ip address del 192.0.2.10/24 dev eth0"]);
    let v6 = Vip { ip: ip("2001:db8::10"), service: None };
    assert_eq!(address(&facts(&[]), &v6, None)[0].mend, ["ip address add 2001:db8::10/128 dev lo"]);
}

#[test]
fn settings_come_before_addresses_and_a_server_that_has_all_is_left_alone() {
    let vips = [ip(VIP), ip("2001:db8::10")];
    let commands = |facts: &Facts| steps(&vips, facts, None).iter().map(Step::command).collect::<Vec<_>>();
    assert_eq!(
        commands(&facts(&[])),
        [
            "sysctl -w net.ipv4.conf.all.arp_ignore=1",
            "sysctl -w net.ipv4.conf.all.arp_announce=2",
            "ip address add 192.0.2.10/32 dev lo",
            "ip address add 2001:db8::10/128 dev lo"
        ]
    );
    let good = facts(&[("all", Key::ArpIgnore, 1), ("all", Key::ArpAnnounce, 2)]);
    let good = with(with(good, "lo", VIP, 32), "lo", "2001:db8::10", 128);
    assert!(commands(&good).is_empty());
    assert!(steps(&vips[1..], &facts(&[]), None).len() == 1, "IPv6 needs no setting");
    assert!(!script(&vips[1..], None, None, (&[], 0)).contains("sysctl"));
    let named = script(&vips, Some("eth9"), None, (&[], 0));
    let check = "[ -e /sys/class/net/eth9 ] || { echo eth9 is no interface of this server: nothing is changed >&2; exit 1; }";
    assert_eq!(named.lines().nth(3), Some(check), "before anything is changed");
}

#[test]
fn files_have_our_mark_in_their_first_line_and_an_interface_with_a_dot_keeps_its_name() {
    for persist in Persist::ALL {
        for vip in [VIP, "2001:db8::10"] {
            let all = files(*persist, ip(vip), &usual("eth0.7"));
            assert_eq!(all.is_empty(), *persist == Persist::SysctlD && vip != VIP);
            for file in all {
                assert!(file.text.lines().next().unwrap().contains(MARK), "{file:?}");
                assert!(!file.text.contains("conf.eth0.7"), "{file:?}");
                assert_eq!(file.text.contains("conf/eth0.7/arp_ignore"), file.text.contains("arp_announce"));
            }
        }
    }
}

#[test]
fn of_netplan_the_loopback_alone_is_given_to_networkd() {
    let all = files(Persist::Netplan, ip(VIP), &usual("all"));
    let yaml = all.iter().find(|file| file.path.ends_with(".yaml")).unwrap();
    // Keys with those above them, by their indentation.
    let (mut above, mut found): (Vec<(usize, &str)>, Vec<String>) = (Vec::new(), Vec::new());
    for line in yaml.text.lines().filter(|line| !line.trim_start().starts_with(['#', '-'])) {
        let (depth, key) = (line.len() - line.trim_start().len(), line.trim().split(':').next().unwrap());
        above.retain(|(at, _)| *at < depth);
        above.push((depth, key));
        found.push(above.iter().map(|(_, key)| *key).collect::<Vec<_>>().join("."));
    }
    let of_lo = |key: &str| format!("network.ethernets.lo{key}");
    let wanted = [of_lo(""), of_lo(".renderer"), of_lo(".match"), of_lo(".match.name"), of_lo(".addresses")];
    assert_eq!(found[3..], wanted, "{found:?}");
    assert_eq!(found[..3], ["network", "network.version", "network.ethernets"]);
}

fn record(text: &str, settings: &[u32]) -> Record {
    let sets = usual("all").into_iter().zip(settings);
    let settings = sets.map(|(set, from)| Changed { set, from: *from }).collect();
    Record {
        ip: ip(text),
        address: Before::Absent,
        settings,
        files: files(Persist::SystemdNetworkd, ip(text), &usual("all")),
        tunnel: Tunnel::default(),
    }
}

#[test]
fn undo_gives_back_what_was_there_and_leaves_what_others_need_or_have_changed() {
    let now = facts(&[("all", Key::ArpIgnore, 1), ("all", Key::ArpAnnounce, 2)]);
    let now = with(with(now, "lo", VIP, 32), "lo", "127.0.0.1", 8);
    let (first, second) = (record(VIP, &[0, 1]), record("192.0.2.11", &[]));
    let back = undo(&first, &[], &now);
    let values: Vec<_> = back.settings.iter().map(Set::assignment).collect();
    assert_eq!(values, ["net.ipv4.conf.all.arp_announce=1", "net.ipv4.conf.all.arp_ignore=0"]);
    assert_eq!((back.address, back.files.len()), (Some(ip(VIP)), 3));
    // Another address needs the settings, and one of the files.
    let back = undo(&first, std::slice::from_ref(&second), &now);
    assert!(back.settings.is_empty() && back.files.len() == 2, "{back:?}");
    let Some((0, handed)) = back.handed_over else { panic!("{back:?}") };
    let mut heir = second;
    handed.into_iter().for_each(|changed| heir.note(changed));
    let alone = facts(&[("all", Key::ArpIgnore, 1), ("all", Key::ArpAnnounce, 2)]);
    assert_eq!(undo(&heir, &[], &alone).settings.len(), 2);
    // One without a record needs the settings as well.
    let foreign = with(now.clone(), "lo", "192.0.2.12", 32);
    let back = undo(&first, &[], &foreign);
    assert!(back.settings.is_empty() && back.handed_over.is_none(), "{back:?}");
    assert!(back.stays[0].ends_with("arp_announce=2: 192.0.2.12 on lo needs it"), "{back:?}");
    // An administrator has changed a setting since, and removed the address.
    let other = facts(&[("all", Key::ArpIgnore, 2), ("all", Key::ArpAnnounce, 2)]);
    let back = undo(&first, &[], &other);
    assert_eq!((back.address, back.settings.len(), back.stays.len()), (None, 1, 1), "{back:?}");
    let kept = Record { address: Before::Present, ..first };
    assert_eq!(undo(&kept, &[], &now).address, None);
}

#[test]
fn a_second_set_up_keeps_what_was_there_before_the_first() {
    let mut record = record(VIP, &[0]);
    let set = Set { to: 2, ..usual("all")[0].clone() };
    record.note(Changed { set: set.clone(), from: 1 });
    assert_eq!(record.settings, [Changed { set, from: 0 }]);
}

#[test]
fn names_of_a_record_lead_to_no_other_file() {
    assert!(undo::changed("eth0.7", "arp_ignore", 0, 1).is_some());
    for conf in ["", "..", ".", "../x", "a/b", "a name", "sixteen-letters-", "a\n"] {
        assert!(undo::changed(conf, "arp_ignore", 0, 1).is_none(), "{conf:?}");
    }
    assert!(undo::changed("all", "forwarding", 0, 1).is_none());
}

#[test]
fn routes_and_sockets_of_the_kernel_are_read() {
    let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                  eth1\t00000000\t01004D0A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
    assert_eq!(default_routes(routes), ["eth1"]);
    let line = |local: &str| {
        format!("  sl  local_address rem_address\n   7: {local} 00000000:0000 07\nnonsense\n 8: 1 x\n")
    };
    let word = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
    let own = format!("{}:0035", word([192, 0, 2, 10]));
    let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
    assert!(receives(&line(&own), at("192.0.2.10:53")));
    assert!(!receives(&line(&own), at("192.0.2.11:53")) && !receives(&line(&own), at("192.0.2.10:54")));
    assert!(receives(&line("00000000:0035"), at("192.0.2.10:53")));
    assert!(!receives(&line("00000000:0035"), at("[2001:db8::10]:53")));
    let any = format!("{}:0035", "0".repeat(32));
    assert!(receives(&line(&any), at("[2001:db8::10]:53")) && receives(&line(&any), at("192.0.2.10:53")));
    let v6 = [[0x20, 1, 0xd, 0xb8], [0; 4], [0; 4], [0, 0, 0, 0x10]].map(word).concat();
    assert!(receives(&line(&format!("{v6}:0035")), at("[2001:db8::10]:53")));
    assert!(!receives("", at("192.0.2.10:53")));
}

#[test]
fn a_tunnel_needs_its_device_a_loose_filter_and_segments_that_fit() {
    let (v4, v6) = (ip(VIP), ip("2001:db8::10"));
    assert_eq!((segment(v4, 1500), segment(v6, 1500), segment(v4, 576)), (1440, 1400, 536));
    let bare = facts(&[]);
    let commands = |facts: &Facts| {
        let steps = tunnel_steps(&[v4, v6], facts, 1500);
        steps.iter().map(Step::command).collect::<Vec<_>>()
    };
    let all = commands(&bare);
    assert!(all[0].ends_with(" || modprobe ipip; ip link set tunl0 up"), "{all:?}");
    assert!(all[1].ends_with(" || modprobe ip6_tunnel; ip link set ip6tnl0 up"), "{all:?}");
    assert!(all[2].contains("ip saddr 192.0.2.10 tcp flags syn tcp option maxseg size set 1440"), "{all:?}");
    assert!(all[3].contains("ip6 saddr 2001:db8::10 tcp flags syn"), "{all:?}");
    assert_eq!(faults(&findings(&bare, v4, 1500)), ["tunnel", "segments"]);
    let mut good = bare;
    good.devices.insert("tunl0".to_owned(), Device::Up);
    good.devices.insert("ip6tnl0".to_owned(), Device::Down);
    good.segments.insert(v4, segment_of(&rules(v4, 1440)).unwrap());
    assert_eq!(
        tunnel_steps(&[v4, v6], &good, 1500),
        [Step::Tunnel(Lacks::Device(v6)), Step::Tunnel(Lacks::Rule(v6, 1400))]
    );
    assert!(faults(&findings(&good, v4, 1500)).is_empty());
    assert_eq!(faults(&findings(&good, v4, 1400)), ["segments"], "another MTU");
    assert_eq!(faults(&findings(&good, v6, 1500)), ["tunnel", "segments"]);
    good.settings.insert(("all".to_owned(), Key::RpFilter), 1);
    assert_eq!(faults(&findings(&good, v4, 1500)), ["tunnel-rp-filter"]);
    let last = steps(&[v4], &good, None).iter().map(Step::command).find(|one| one.contains("rp_filter"));
    assert_eq!(last.as_deref(), Some("sysctl -w net.ipv4.conf.tunl0.rp_filter=2"));
    let text = script(&[v4], None, None, (&[v4], 1500));
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
    assert!(
        at("modprobe ipip
") < at("sysctl -qw net.ipv4.conf.tunl0.rp_filter=2"),
        "{text}"
    );
    assert!(at("tunl0.rp_filter") < at("ip address replace"), "{text}");
    assert!(!script(&[v4], None, None, (&[], 1500)).contains("tunl0"));
}

#[test]
fn a_tunnel_is_taken_back_with_the_last_address_that_needs_it() {
    let tunnel = Tunnel { has_table: true, has_device: true };
    let (first, mut second) = (Record { tunnel, ..record(VIP, &[]) }, record("192.0.2.11", &[]));
    let now = facts(&[]);
    let back = undo(&first, std::slice::from_ref(&second), &now);
    assert_eq!((back.table, back.device), (Some(ip(VIP)), Some("tunl0")), "the other one has none");
    second.tunnel.has_table = true;
    let back = undo(&first, std::slice::from_ref(&second), &now);
    assert_eq!((back.table, back.device), (Some(ip(VIP)), None));
    assert!(back.stays.contains(&"tunl0: 192.0.2.11 needs it".to_owned()), "{back:?}");
    assert_eq!(
        (undo(&second, &[], &now).table, undo(&record(VIP, &[]), &[], &now).table),
        (Some(second.ip), None)
    );
}
