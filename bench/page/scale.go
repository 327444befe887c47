package page

import (
	"math"
	"strconv"
	"strings"
)

// scale maps values to a coordinate, linearly or by logarithm.
type scale struct {
	low, high float64 // values at the ends; both above 0 when log
	from, to  float64 // coordinates of the ends
	log       bool
}

// logRatio is the ratio between the largest and the smallest value from which on a logarithmic scale shows more than a linear one.
const logRatio = 8

// axisOf returns a scale that holds every value with some room. Non-finite values are left out; without any it spans 0 to 1.
// A linear scale begins at 0 unless a value is negative, so that lengths along it may be compared.
func axisOf(values []float64, mayLog bool) scale {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			low, high = math.Min(low, v), math.Max(high, v)
		}
	}
	switch {
	case low > high:
		return scale{high: 1}
	case mayLog && low > 0 && high/low >= logRatio:
		return scale{low: low / 1.25, high: high * 1.25, log: true}
	}
	low, high = math.Min(low, 0), math.Max(high, 0)
	if low == high {
		high = 1
	}
	room := (high - low) * 0.06
	if low < 0 {
		low -= room
	}
	if high > 0 {
		high += room
	}
	return scale{low: low, high: high}
}

// tightAxisOf returns a linear scale that holds every value and need not hold 0.
func tightAxisOf(values []float64) scale {
	s := axisOf(values, false)
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, high = math.Min(low, v), math.Max(high, v)
	}
	if room := (high - low) * 0.06; room > 0 && low-room > 0 && !math.IsInf(room, 0) {
		s.low, s.high = low-room, high+room
	}
	return s
}

// on returns the scale between two coordinates.
func (s scale) on(from, to float64) scale {
	s.from, s.to = from, to
	return s
}

// at returns the coordinate of a value; values outside lie at the nearer end.
func (s scale) at(v float64) float64 {
	part := (v - s.low) / (s.high - s.low)
	if s.log {
		part = math.Log(math.Max(v, s.low)/s.low) / math.Log(s.high/s.low)
	}
	return s.from + (s.to-s.from)*math.Max(0, math.Min(1, part))
}

// ticks returns round values inside the scale: about `want` on a linear one; 1, 2 and 5 of each power of ten on a logarithmic one, thinned to
// the powers of ten alone when there are too many.
func (s scale) ticks(want int) []float64 {
	if s.log {
		return s.logTicks(2 * want)
	}
	span := s.high - s.low
	step := math.Pow(10, math.Floor(math.Log10(span/float64(want))))
	for _, factor := range []float64{1, 2, 5, 10} {
		if span/(step*factor) <= float64(want) {
			step *= factor
			break
		}
	}
	var ticks []float64
	for i := math.Ceil(s.low/step - 1e-9); i*step <= s.high*(1+1e-12); i++ {
		ticks = append(ticks, i*step+0) // the sum makes a negative zero positive
	}
	return ticks
}

func (s scale) logTicks(most int) []float64 {
	for _, factors := range [][]float64{{1, 2, 5}, {1, 3}, {1}} {
		var ticks []float64
		for power := math.Pow(10, math.Floor(math.Log10(s.low))); power <= s.high; power *= 10 {
			for _, factor := range factors {
				if v := power * factor; v >= s.low && v <= s.high {
					ticks = append(ticks, v)
				}
			}
		}
		if len(ticks) <= most || len(factors) == 1 {
			return ticks
		}
	}
	return nil
}

// tickText writes a tick's value as short as it is exact to 12 digits.
func tickText(v float64) string {
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 12, 64), 64)
	if err != nil {
		rounded = v
	}
	if math.Abs(rounded) >= 10000 && rounded == math.Trunc(rounded) {
		return grouped(int64(rounded))
	}
	return strings.Replace(strconv.FormatFloat(rounded, 'f', -1, 64), "-", "\u2212", 1)
}

// grouped writes a whole number with a comma between thousands.
func grouped(v int64) string {
	digits := strconv.FormatInt(v, 10)
	sign := ""
	if v < 0 {
		sign, digits = "\u2212", digits[1:]
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}
