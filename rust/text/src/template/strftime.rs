//! `strftime` in the C locale, for the date that some templates show.

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const SECONDS_PER_DAY: i64 = 86_400;

struct Date {
    year: i64,
    month: i64,
    day: i64,
    /// 0 is Sunday.
    weekday: i64,
    /// 1 is the first of January.
    yearday: i64,
}

/// Gregorian date of a day number (0 is 1970-01-01), by 400-year eras that begin on the first of March.
fn civil(days: i64) -> Date {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize - 1];
    let yearday = before + day + i64::from(leap && month > 2);
    Date { year, month, day, weekday: (days + 4).rem_euclid(7), yearday }
}

/// `time.strftime(format)` for `local` seconds since 1970-01-01T00:00:00 on the clock to be shown.
pub(super) fn format(format: &str, local: i64) -> Result<String, Error> {
    let date = civil(local.div_euclid(SECONDS_PER_DAY));
    let second_of_day = local.rem_euclid(SECONDS_PER_DAY);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (unpadded, directive) = match chars.next() {
            Some('-') => (true, chars.next()),
            other => (false, other),
        };
        let number = |value: i64, width: usize| {
            if unpadded { value.to_string() } else { format!("{value:0width$}") }
        };
        let month = MONTHS[date.month as usize - 1];
        let day = DAYS[date.weekday as usize];
        let piece = match directive {
            Some('Y') => date.year.to_string(),
            Some('y') => number(date.year.rem_euclid(100), 2),
            Some('m') => number(date.month, 2),
            Some('d') => number(date.day, 2),
            Some('e') if unpadded => date.day.to_string(),
            Some('e') => format!("{:2}", date.day),
            Some('j') => number(date.yearday, 3),
            Some('H') => number(hour, 2),
            Some('I') => number((hour + 11) % 12 + 1, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => month[..3].to_owned(),
            Some('A') => day.to_owned(),
            Some('a') => day[..3].to_owned(),
            Some('u') => number((date.weekday + 6) % 7 + 1, 1),
            Some('w') => number(date.weekday, 1),
            Some('F') => format!("{}-{:02}-{:02}", date.year, date.month, date.day),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('R') => format!("{hour:02}:{minute:02}"),
            Some('D') => format!("{:02}/{:02}/{:02}", date.month, date.day, date.year.rem_euclid(100)),
            Some('s') => local.to_string(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            // A naive datetime has no zone: both are empty in Python.
            Some('z' | 'Z') => String::new(),
            other => {
                let directive = other.map_or(String::new(), String::from);
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now does not know the directive %{directive}"),
                ));
            }
        };
        out.push_str(&piece);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each expected text was printed by Python's `datetime` for the same moment.
    #[test]
    fn dates_are_those_of_python() {
        let all = "%Y-%m-%d %H:%M:%S %j %a %A %b %B %y %-d %e %I %p %u %w";
        let cases = [
            (0, "1970-01-01 00:00:00 001 Thu Thursday Jan January 70 1  1 12 AM 4 4"),
            (951_782_399, "2000-02-28 23:59:59 059 Mon Monday Feb February 00 28 28 11 PM 1 1"),
            (951_782_400, "2000-02-29 00:00:00 060 Tue Tuesday Feb February 00 29 29 12 AM 2 2"),
            (1_709_251_199, "2024-02-29 23:59:59 060 Thu Thursday Feb February 24 29 29 11 PM 4 4"),
            (1_735_689_599, "2024-12-31 23:59:59 366 Tue Tuesday Dec December 24 31 31 11 PM 2 2"),
            (4_107_542_400, "2100-03-01 00:00:00 060 Mon Monday Mar March 00 1  1 12 AM 1 1"),
            (-1, "1969-12-31 23:59:59 365 Wed Wednesday Dec December 69 31 31 11 PM 3 3"),
        ];
        for (local, expected) in cases {
            assert_eq!(format(all, local).unwrap(), expected);
        }
    }

    #[test]
    fn an_unknown_directive_is_an_error() {
        assert!(format("%Q", 0).unwrap_err().to_string().contains("%Q"));
    }
}
