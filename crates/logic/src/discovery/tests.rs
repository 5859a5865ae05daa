use std::collections::BTreeSet;

use super::*;

fn address(last: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, (last >> 8) as u8, last as u8], 80))
}

fn answer(addresses: impl IntoIterator<Item = u16>) -> Answer {
    let found = |last| Found { address: address(last), rank: Rank::EQUAL, target: None };
    Answer { found: addresses.into_iter().map(found).collect(), unknown: Vec::new(), left_out: 0 }
}

fn of_target(last: u16, target: &str, weight: u32, priority: u32) -> Found {
    Found { address: address(last), rank: Rank { weight, priority }, target: Some(target.into()) }
}

fn here(members: &Members) -> Vec<SocketAddr> {
    let here = members.iter().filter(|member| member.standing == Standing::Here);
    here.map(|member| member.address).collect()
}

#[test]
fn a_rotated_answer_changes_nothing() {
    let mut members = Members::default();
    assert_eq!(members.answered(&answer([1, 2, 3]), 1).added, [1, 2, 3].map(address));
    assert!(!members.answered(&answer([3, 1, 2, 3]), 1).any());
    assert_eq!(here(&members), [1, 2, 3].map(address));
}

#[test]
fn an_address_leaves_after_so_many_answers_without_it_and_is_forgotten_when_it_is_idle() {
    let mut members = Members::default();
    members.answered(&answer([1, 2]), 2);
    assert!(!members.answered(&answer([1]), 2).any(), "one answer may be a part");
    assert_eq!(members.answered(&answer([1]), 2).leaving, [address(2)]);
    assert!(members.has_leaving());
    assert!(!members.answered(&answer([1]), 2).any(), "it is said once");
    assert!(members.forget_idle(|_| false).is_empty());
    assert_eq!(members.forget_idle(|_| true), [address(2)]);
    assert_eq!(here(&members), [address(1)]);
    assert!(!members.has_leaving());
}

#[test]
fn an_address_that_comes_back_is_the_same_backend_and_its_misses_count_from_zero() {
    let mut members = Members::default();
    members.answered(&answer([1, 2]), 2);
    members.answered(&answer([1]), 2);
    members.answered(&answer([1, 2]), 2);
    assert!(!members.answered(&answer([1]), 2).any());
    members.answered(&answer([1]), 2);
    let changes = members.answered(&answer([1, 2]), 2);
    assert_eq!((changes.returned, changes.added), (vec![address(2)], vec![]));
    assert_eq!(here(&members), [1, 2].map(address));
}

#[test]
fn an_answer_with_too_many_addresses_is_cut_and_those_that_are_served_stay() {
    let mut members = Members::default();
    members.answered(&answer([9999]), 3);
    let changes = members.answered(&answer((0..1000).rev()), 3);
    assert_eq!((changes.added.len(), changes.left_out), (MOST - 1, 1000 - (MOST - 1)));
    assert_eq!(here(&members)[..3], [9999, 0, 1].map(address));
    assert!(!members.answered(&answer(0..1000), 3).any());
}

#[test]
fn names_with_other_addresses_in_each_answer_keep_a_bounded_number() {
    let mut members = Members::default();
    for round in 0..50 {
        members.answered(&answer((0..250).map(|last| round * 250 + last)), 1);
        assert!(members.iter().count() <= 2 * MOST);
    }
    assert_eq!(here(&members).len(), 250);
}

#[test]
fn the_addresses_of_a_target_whose_look_up_failed_stay() {
    let mut members = Members::default();
    let both = [of_target(1, "a", 1, 0), of_target(2, "b", 1, 0)];
    members.answered(&Answer { found: both.to_vec(), unknown: Vec::new(), left_out: 0 }, 1);
    let half = Answer { found: both[..1].to_vec(), unknown: vec!["b".into()], left_out: 0 };
    assert!(!members.answered(&half, 1).any());
    let without = Answer { found: both[..1].to_vec(), unknown: vec!["c".into()], left_out: 0 };
    assert_eq!(members.answered(&without, 1).leaving, [address(2)]);
}

#[test]
fn an_address_of_several_targets_is_one_backend_of_the_lowest_priority() {
    let mut members = Members::default();
    let found = vec![of_target(1, "a", 7, 1), of_target(1, "b", 3, 0), of_target(1, "c", 2, 0)];
    members.answered(&Answer { found, unknown: Vec::new(), left_out: 0 }, 1);
    let ranks: Vec<_> = members.iter().map(|member| member.rank).collect();
    assert_eq!(ranks, [Rank { weight: 5, priority: 0 }]);
}

#[test]
fn another_weight_is_a_change() {
    let mut members = Members::default();
    let with =
        |weight| Answer { found: vec![of_target(1, "a", weight, 0)], unknown: Vec::new(), left_out: 0 };
    members.answered(&with(1), 1);
    let changes = members.answered(&with(2), 1);
    assert_eq!(changes.ranked, [address(1)]);
    assert_eq!(changes.to_string(), "other weight or priority: 10.0.0.1:80");
}

#[test]
fn after_any_answers_the_last_one_holds_when_it_repeats() {
    let mut random: u64 = 7;
    let mut next = |most: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % most
    };
    for _ in 0..300 {
        let mut members = Members::default();
        let misses = next(4) as u32 + 1;
        let mut last = BTreeSet::new();
        for _ in 0..next(20) + 1 {
            last = (0..next(12) + 1).map(|_| next(16) as u16).collect();
            members.answered(&answer(last.iter().copied()), misses);
            if next(3) == 0 {
                members.forget_idle(|address| address.port() % 2 == 0);
            }
        }
        for _ in 0..misses {
            members.answered(&answer(last.iter().copied()), misses);
        }
        let found: BTreeSet<_> = here(&members).into_iter().collect();
        assert_eq!(found, last.into_iter().map(address).collect());
        let all: BTreeSet<_> = members.iter().map(|member| member.address).collect();
        assert_eq!(all.len(), members.iter().count(), "each once");
    }
}

#[test]
fn addresses_where_no_server_can_be_are_not_used() {
    for text in ["0.0.0.0:80", "[::]:80", "224.0.0.1:80", "[ff02::1]:80", "255.255.255.255:80", "10.0.0.1:0"]
    {
        assert!(!is_usable(text.parse().unwrap()), "{text}");
    }
    assert!(is_usable("127.0.0.1:80".parse().unwrap()) && is_usable("[2001:db8::1]:80".parse().unwrap()));
}

fn ranked(records: &[(u16, u16)]) -> Vec<(u32, u32)> {
    let record =
        |&(priority, weight): &(u16, u16)| Service { priority, weight, port: 80, target: "a".into() };
    let records: Vec<_> = records.iter().map(record).collect();
    ranks(&records).iter().map(|rank| (rank.priority, rank.weight)).collect()
}

#[test]
fn srv_weights_keep_their_proportions_and_priorities_their_order() {
    assert_eq!(ranked(&[(10, 60), (10, 20), (65535, 5)]), [(0, 60), (0, 20), (1, 5)]);
    assert_eq!(ranked(&[(0, 0), (0, 0)]), [(0, 1), (0, 1)]);
    assert_eq!(ranked(&[(0, 0), (0, 1)]), [(0, 1), (0, 1000)]);
    assert_eq!(ranked(&[(0, 65535), (0, 1), (0, 32768)]), [(0, 1000), (0, 1), (0, 500)]);
    assert_eq!(ranked(&[]), []);
}

#[test]
fn a_member_has_its_rank_within_that_of_the_entry() {
    let within = |weight, priority| {
        let rank = Rank { weight: 60, priority: 2 }.within(Rank { weight, priority });
        (rank.weight, rank.priority)
    };
    assert_eq!(within(1, 0), (60, 2));
    assert_eq!(within(0, 0), (0, 2));
    assert_eq!(within(1000, 1000), (1000, 1000));
}

#[test]
fn an_event_names_a_few_addresses() {
    let changes = Changes { added: (0..20).map(address).collect(), ..Changes::default() };
    assert!(changes.to_string().ends_with("10.0.0.7:80 and 12 more"), "{changes}");
}
