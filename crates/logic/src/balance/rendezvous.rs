//! Weighted rendezvous hashing: each backend gets a score for the key; the highest score wins.

use super::hash::mix;

/// Returns the index with the highest score for `key` among `(index, seed, weight)`; the smaller seed wins a tie.
///
/// The score is `-weight / ln(u)`, with `u` uniform in (0, 1) from key and seed. The probability to win is then in
/// proportion to the weight, and a change of one backend's weight moves only keys that this backend gains or loses.
pub fn highest(key: u64, backends: impl Iterator<Item = (usize, u64, u32)>) -> Option<usize> {
    let mut best: Option<(f64, u64, usize)> = None;
    let key = mix(key);
    for (index, seed, weight) in backends {
        if weight == 0 {
            continue;
        }
        let hash = mix(key ^ seed);
        if best.is_some_and(|(highest, ..)| f64::from(weight) < highest * least_negative_ln(hash)) {
            continue;
        }
        let lot = f64::from(weight) / negative_ln(hash);
        let wins = best.is_none_or(|(highest, of, _)| lot > highest || (lot == highest && seed < of));
        if wins {
            best = Some((lot, seed, index));
        }
    }
    best.map(|(_, _, index)| index)
}

/// `-ln(u)` for `u = (hash + 1/2) / 2^52` of the upper 52 bits: positive and finite.
///
/// Uses only addition, multiplication and division. IEEE 754 defines their results to the last bit, so every node
/// computes the same scores; a library's logarithm may differ between machines.
fn negative_ln(hash: u64) -> f64 {
    const LN_2: f64 = std::f64::consts::LN_2;
    let u = ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
    let bits = u.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    // u = mantissa * 2^exponent with the mantissa in [1, 2), moved to [3/4, 3/2) where the series converges fast.
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    let mut exponent = f64::from(exponent);
    if mantissa >= 1.5 {
        mantissa /= 2.0;
        exponent += 1.0;
    }
    // ln(m) = 2 artanh((m - 1) / (m + 1))
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / odd;
    }
    -(exponent * LN_2 + 2.0 * s * sum)
}

/// A little less than `1 - u`, which is less than `-ln(u)`: most backends lose by it, and need no logarithm.
fn least_negative_ln(hash: u64) -> f64 {
    const LESS: f64 = 1.0 - 1e-9;
    (!hash >> 12) as f64 / (1_u64 << 52) as f64 * LESS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same with all logarithms.
    fn plain(key: u64, backends: &[(usize, u64, u32)]) -> Option<usize> {
        let lot =
            |(_, seed, weight): &(usize, u64, u32)| f64::from(*weight) / negative_ln(mix(mix(key) ^ seed));
        let order = |a: &(usize, u64, u32), b: &(usize, u64, u32)| {
            lot(a).total_cmp(&lot(b)).then_with(|| b.1.cmp(&a.1))
        };
        let some = backends.iter().filter(|(.., weight)| *weight > 0);
        some.max_by(|a, b| order(a, b)).map(|(index, ..)| *index)
    }

    #[test]
    fn backends_that_lose_without_a_logarithm_would_lose_with_it() {
        for (backends, weights) in [(1, 1), (3, 1), (40, 5), (300, 1), (300, 1000)] {
            let of = |index: u64| (index as usize, mix(index + 77), (mix(index) % weights) as u32 + 1);
            let all: Vec<_> = (0..backends).map(of).chain([(999, 5, 0), (1000, 6, u32::MAX)]).collect();
            for key in 0..500 {
                for some in [&all[..all.len() - 1], &all[..]] {
                    assert_eq!(highest(key, some.iter().copied()), plain(key, some));
                }
            }
        }
        for hash in [0, 1, 4095, 1 << 40, 1 << 63, u64::MAX, u64::MAX - 4096, u64::MAX - (1 << 13)] {
            assert!(least_negative_ln(hash) < negative_ln(hash), "{hash:x}");
        }
    }

    #[test]
    fn the_logarithm_is_the_logarithm() {
        let mut hash = 1_u64;
        for step in 0..100_000_u64 {
            hash = mix(hash ^ step);
            let u = ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
            let expected = -u.ln();
            let got = negative_ln(hash);
            assert!((got - expected).abs() <= 1e-12 + expected * 1e-12, "{hash:x}: {got} is not {expected}");
        }
    }

    #[test]
    fn every_lot_is_finite_and_positive() {
        for hash in [0, 1, 4095, 4096, u64::MAX, u64::MAX - 4096, 1 << 63, (1 << 63) - 1] {
            let lot = 1.0 / negative_ln(hash);
            assert!(lot.is_finite() && lot > 0.0, "{hash:x}");
        }
    }

    #[test]
    fn a_key_goes_to_the_same_seed_in_any_order_and_on_any_day() {
        let backends = [(0, 11, 1), (1, 22, 2), (2, 33, 3)];
        let chosen: Vec<_> = (0..12).map(|key| highest(key, backends.into_iter()).unwrap()).collect();
        let backwards: Vec<_> =
            (0..12).map(|key| highest(key, backends.into_iter().rev()).unwrap()).collect();
        assert_eq!(chosen, backwards);
        assert_eq!(highest(1, std::iter::empty()), None);
        assert_eq!(highest(1, [(0, 11, 0)].into_iter()), None);
    }
}
