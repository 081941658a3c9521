//! Throughput against interactivity, as SVG: every run a point, the ones that no other beats in both joined by a line.
//! And plain lines, for draft lengths.

use std::fmt::Write as _;

use serde_json::Value;

use crate::report::{Results, number};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 500.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 180.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
/// Colours that people with colour blindness can tell apart (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// A run in the plot.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    /// Output tokens per second of one request: 1000 over the median TPOT.
    each: f64,
    /// Output tokens per second of all.
    all: f64,
    name: String,
}

fn points(results: &Results) -> Vec<Point> {
    let points = results.runs.iter().filter_map(|run| {
        let value = |pointer: &str| run.summary.pointer(pointer).and_then(Value::as_f64);
        let per_token = value("/tpot_ms/median").filter(|ms| *ms > 0.0)?;
        Some(Point { each: 1e3 / per_token, all: value("/output_tokens_per_s")?, name: run.name.clone() })
    });
    points.collect()
}

/// The points that no other is better than in one respect and at least as good in the other, from left to right.
fn frontier(points: &[Point]) -> Vec<&Point> {
    let mut sorted: Vec<&Point> = points.iter().collect();
    sorted.sort_by(|a, b| b.each.total_cmp(&a.each).then(b.all.total_cmp(&a.all)));
    let mut best = f64::NEG_INFINITY;
    sorted.retain(|point| {
        let better = point.all > best;
        best = best.max(point.all);
        better
    });
    sorted.reverse();
    sorted
}

/// A round number of which about five make up `most`.
fn tick(most: f64) -> f64 {
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= rough).unwrap_or(rough)
}

/// A linear axis from 0.
struct Axis {
    tick: f64,
    most: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>) -> Self {
        let most = values.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let tick = tick(most);
        Self { tick, most: (most / tick).ceil() * tick }
    }

    fn share(&self, value: f64) -> f64 {
        value / self.most
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let tick = self.tick;
        (0..=(self.most / tick).round() as u32).map(move |step| f64::from(step) * tick)
    }
}

/// The plot; an error if there is nothing to show.
pub fn pareto(results: &[Results]) -> Result<String, String> {
    let series: Vec<(&str, Vec<Point>)> =
        results.iter().map(|result| (&*result.label, points(result))).collect();
    let all = || series.iter().flat_map(|(_, points)| points);
    if all().next().is_none() {
        return Err("no run has a time per token to plot".to_owned());
    }
    let (across, up) = (Axis::over(all().map(|point| point.each)), Axis::over(all().map(|point| point.all)));
    let place = |each: f64, all: f64| {
        let x = LEFT + (WIDTH - LEFT - RIGHT) * across.share(each);
        (x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up.share(all))
    };
    let mut svg = head();
    draw_axes(&mut svg, &across, &up, place);
    draw_titles(&mut svg, "output tokens/s of one request (1 / median TPOT)", "output tokens/s");
    for (index, (label, points)) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let line: Vec<String> = frontier(points)
            .iter()
            .map(|point| place(point.each, point.all))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let line = line.join(" ");
        let _ = writeln!(
            svg,
            "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        for point in points {
            let (x, y) = place(point.each, point.all);
            let name = escaped(&point.name);
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
            let _ =
                writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\">{name}</text>", x + 7.0, y - 5.0);
        }
        let (x, y) = (WIDTH - RIGHT + 30.0, TOP + 20.0 * index as f64);
        let label = escaped(label);
        let _ =
            writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\" font-weight=\"bold\">{label}</text>");
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn draw_axes(svg: &mut String, across: &Axis, up: &Axis, place: impl Fn(f64, f64) -> (f64, f64)) {
    for each in across.ticks() {
        let ((x, bottom), (_, top)) = (place(each, 0.0), place(each, up.most));
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            number(each)
        );
    }
    for all in up.ticks() {
        let ((left, y), (right, _)) = (place(0.0, all), place(across.most, all));
        let _ = writeln!(
            svg,
            "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            y + 4.0,
            number(all)
        );
    }
}

fn draw_titles(svg: &mut String, across: &str, up: &str) {
    let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{across}</text>\
         <text x=\"{}\" y=\"{}\">{up}</text>",
        HEIGHT - 15.0,
        LEFT / 2.0,
        TOP - 18.0
    );
}

/// A named line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What it is told by.
    pub name: String,
    /// Its points, in any order.
    pub points: Vec<(f64, f64)>,
}

/// Lines over one axis, and a dashed one at `level`; an error if there is nothing to show.
pub fn lines(all: &[Line], across: &str, up: &str, level: f64) -> Result<String, String> {
    let points = || all.iter().flat_map(|line| &line.points);
    if points().next().is_none() {
        return Err("there is no point to plot".to_owned());
    }
    let xs = Axis::over(points().map(|point| point.0));
    let ys = Axis::over(points().map(|point| point.1).chain([level]));
    let place = |x: f64, y: f64| {
        let left = LEFT + (WIDTH - LEFT - RIGHT) * xs.share(x);
        (left, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ys.share(y))
    };
    let mut svg = head();
    draw_axes(&mut svg, &xs, &ys, place);
    draw_titles(&mut svg, &escaped(across), &escaped(up));
    let ((left, y), (right, _)) = (place(0.0, level), place(xs.most, level));
    let _ =
        writeln!(svg, "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#000\" stroke-dasharray=\"6 4\"/>");
    for (index, line) in all.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut sorted = line.points.clone();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let places: Vec<(f64, f64)> = sorted.iter().map(|(x, y)| place(*x, *y)).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let path = path.join(" ");
        let _ = writeln!(
            svg,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        for (x, y) in places {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
        }
        let (x, y) = (WIDTH - RIGHT + 12.0, TOP + 20.0 * index as f64);
        let name = escaped(&line.name);
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{name}</text>");
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn head() -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::Run;

    fn point(each: f64, all: f64) -> Point {
        Point { each, all, name: String::new() }
    }

    #[test]
    fn the_frontier_leaves_out_what_another_beats() {
        let points = [
            point(100.0, 100.0),
            point(50.0, 300.0),
            point(40.0, 250.0),
            point(10.0, 400.0),
            point(50.0, 200.0),
        ];
        let line: Vec<f64> = frontier(&points).iter().map(|point| point.each).collect();
        assert_eq!(line, [10.0, 50.0, 100.0]);
    }

    #[test]
    fn ticks_are_round_and_cover_the_data() {
        for (most, wanted) in [(97.0, 20.0), (1.0, 0.2), (6_362.0, 2_000.0), (0.03, 0.01)] {
            let axis = Axis::over([most].into_iter());
            assert!((axis.tick - wanted).abs() < 1e-12, "{most}: {}", axis.tick);
            assert!(axis.most >= most);
            assert!(axis.ticks().count() <= 7);
        }
    }

    #[test]
    fn names_cannot_break_the_svg() {
        let run = |name: &str, tpot: f64| Run {
            name: name.to_owned(),
            settings: Value::Null,
            summary: json!({"tpot_ms": {"median": tpot}, "output_tokens_per_s": 100.0}),
        };
        let results = Results { label: "<b>&".to_owned(), runs: vec![run("a<b", 10.0), run("zero", 0.0)] };
        let svg = pareto(&[results]).unwrap();
        assert!(svg.contains("&lt;b&gt;&amp;") && svg.contains("a&lt;b") && !svg.contains("<b>"));
        assert_eq!(svg.matches("<circle").count(), 1, "a run without a time per token has no place");
        pareto(&[Results { label: String::new(), runs: Vec::new() }]).unwrap_err();
    }
}
