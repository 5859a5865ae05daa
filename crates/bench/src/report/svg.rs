//! Charts as SVG text: bars with intervals, and latency curves. The page defines the colours.

use std::fmt::Write;

use text::terminal::is_printable;

use crate::results::GroupResult;
use crate::sample::Scale;
use crate::stats::Summary;

/// Horizontal bars: the median of the headline figure, its interval, and a dot for each round.
pub(super) fn bars(group: &GroupResult) -> String {
    let rows: Vec<_> = group
        .contestants
        .iter()
        .enumerate()
        .filter_map(|(index, contestant)| {
            let values = contestant.values_by_round(&group.headline);
            Summary::of(&values).map(|summary| (index, contestant.name.as_str(), values, summary))
        })
        .collect();
    let longest = rows.iter().map(|(.., summary)| summary.range[1]).fold(0.0, f64::max);
    if longest <= 0.0 {
        return String::new();
    }
    let label = width(rows.iter().map(|(_, name, ..)| *name)).max(LABEL);
    let bar = WIDTH - label - FIGURE;
    let x = |value: f64| label + value / longest * bar;
    let bottom = rows.len() as f64 * ROW + 4.0;
    let mut svg =
        open(WIDTH, bottom + AXIS, &format!("{}: {}", group.title, group.headline.title(&group.unit)));
    for tick in ticks(longest) {
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{x:.1} 0V{bottom:.1}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 14.0,
            if tick == 0.0 { "0".to_owned() } else { escape(&group.headline.show(tick)) },
            x = x(tick),
        );
    }
    for (place, (index, name, values, summary)) in rows.iter().enumerate() {
        let top = place as f64 * ROW + 6.0;
        let middle = top + THICK / 2.0;
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"c{}\" x=\"{label}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{THICK}\" rx=\"2\"/>",
            label - GAP,
            middle + 4.0,
            escape(name),
            index % COLOURS,
            (x(summary.median) - label).max(1.0),
        );
        let (low, high) = (x(summary.interval.low), x(summary.interval.high));
        let _ = write!(svg, "<path class=\"whisker\" d=\"M{low:.1} {middle:.1}H{high:.1}\"/>");
        for value in values {
            let _ = write!(svg, "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"2\"/>", x(*value));
        }
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x(summary.range[1]) + GAP,
            middle + 4.0,
            escape(&group.headline.show(summary.median)),
        );
    }
    svg + "</svg>"
}

/// Latency by percentile. Both axes are logarithmic; the horizontal axis is scaled in nines.
pub(super) fn latencies(group: &GroupResult) -> String {
    let curves: Vec<_> = group
        .contestants
        .iter()
        .enumerate()
        .filter_map(|(index, contestant)| {
            let latency = contestant.latency()?;
            let points: Option<Vec<_>> = SHARES.iter().map(|share| latency.quantile(*share)).collect();
            Some((index, contestant.name.as_str(), points?))
        })
        .collect();
    let all = || curves.iter().flat_map(|(.., points)| points.iter().copied());
    let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    if !(low > 0.0 && high > 0.0) {
        return String::new();
    }
    let (bottom, top) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let y = |seconds: f64| PLOT_TOP + (top - seconds.log10()) / (top - bottom) * PLOT;
    let plot = WIDTH - DECADE - width(curves.iter().map(|(_, name, _)| *name)).max(LABEL);
    let x = |place: usize| DECADE + place as f64 / (SHARES.len() - 1) as f64 * plot;
    let mut svg = open(WIDTH, PLOT + PLOT_TOP + 30.0, &format!("{}: latency", group.title));
    for decade in (bottom as i32)..=(top as i32) {
        let seconds = 10_f64.powi(decade);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{DECADE} {y:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            DECADE + plot,
            DECADE - GAP,
            y(seconds) + 4.0,
            Scale::Seconds.show(seconds),
            y = y(seconds),
        );
    }
    for (place, share) in SHARES.iter().enumerate() {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} %</text>",
            x(place),
            PLOT + PLOT_TOP + 20.0,
            share * 100.0,
        );
    }
    for (index, name, points) in &curves {
        let path: Vec<_> = points
            .iter()
            .enumerate()
            .map(|(place, value)| format!("{:.1} {:.1}", x(place), y(*value)))
            .collect();
        let class = index % COLOURS;
        let _ = write!(
            svg,
            "<path class=\"line l{class}\" d=\"M{}\"><title>{}</title></path>",
            path.join("L"),
            escape(name)
        );
    }
    // Names are drawn to the right of their curves, with a minimum distance even where curves end together.
    let mut ends: Vec<_> = curves
        .iter()
        .filter_map(|(index, name, points)| Some((*index, *name, y(points.last().copied()?))))
        .collect();
    ends.sort_by(|a, b| a.2.total_cmp(&b.2));
    let mut free = f64::NEG_INFINITY;
    for (index, name, end) in ends {
        let place = end.max(free);
        free = place + 14.0;
        let class = index % COLOURS;
        let _ = write!(
            svg,
            "<text class=\"t{class}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            DECADE + plot + GAP,
            place + 4.0,
            escape(name)
        );
    }
    svg + "</svg>"
}

/// Escapes text for XML.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if !is_printable(c) && c != '\n' && c != '\t' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Values of an axis from 0 to `longest`: at most five steps of 1, 2 or 5 times a power of ten.
fn ticks(longest: f64) -> Vec<f64> {
    let power = 10_f64.powf((longest / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| longest / step <= 5.0).unwrap_or(longest);
    (0..=5).map(|count| f64::from(count) * step).filter(|tick| *tick <= longest * 1.0001).collect()
}

/// Width of a column for these names, with a gap on both sides.
fn width<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    names.map(|name| name.chars().count()).max().unwrap_or(0) as f64 * LETTER + 2.0 * GAP
}

fn open(width: f64, height: f64, label: &str) -> String {
    format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">", escape(label))
}

/// Number of colours in the page's style sheet.
pub(super) const COLOURS: usize = 7;

const SHARES: [f64; 6] = [0.25, 0.5, 0.75, 0.9, 0.99, 0.999];
/// Narrow enough that the text of 13 pixels can be read on a page of 420 pixels.
const WIDTH: f64 = 480.0;
/// Least width of the column of names.
const LABEL: f64 = 120.0;
/// Width of a figure beside the longest bar.
const FIGURE: f64 = 95.0;
/// Width of the times beside the latency axis.
const DECADE: f64 = 70.0;
/// Width of a letter of a name, of 13 pixels.
const LETTER: f64 = 7.0;
const GAP: f64 = 8.0;
/// Height of the axis below bars.
const AXIS: f64 = 20.0;
const ROW: f64 = 28.0;
const THICK: f64 = 18.0;
const PLOT: f64 = 200.0;
const PLOT_TOP: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_begins_at_zero_and_has_round_steps() {
        assert_eq!(ticks(11.7), [0.0, 5.0, 10.0]);
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(99_000.0), [0.0, 20_000.0, 40_000.0, 60_000.0, 80_000.0]);
        for longest in [1e-9, 3.3e-6, 0.02, 7.0, 12_345.0, 9.9e9] {
            let all = ticks(longest);
            assert!((2..=6).contains(&all.len()) && all[all.len() - 1] > longest / 2.0, "{longest}: {all:?}");
        }
    }
}
