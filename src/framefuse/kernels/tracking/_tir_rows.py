"""What the arrays of tracks, (n, ROWS) float64, and of boxes, (BOX_ROWS, n) float64, hold.

A track begins with its filter: four positions (centre x, centre y, width, height), four velocities, the variance of a
position, its covariance with its velocity, and the variance of a velocity. SEEN is the time of the last observation in
seconds. What OC-SORT adds follows: the last box, the filter after it, the direction of motion as a unit vector
((0, 0): not known yet), and the last observations, newest first: their times, their x, their y.

A box has its centre, width and height, then its class, its confidence, and its corners.
"""

VELOCITY, VARIANCE, FILTER = 4, 8, 11
ID, CLASS, SEEN, HITS, CONFIDENCE, ROWS = range(FILTER, FILTER + 6)
LAST, SAVED, DIRECTION, TIMES = ROWS, ROWS + 4, ROWS + 4 + FILTER, ROWS + 6 + FILTER
REMEMBERED = 3
"""Observations."""
CENTRES = TIMES + REMEMBERED
ALL_ROWS = CENTRES + 2 * REMEMBERED

BOX_CLASS, BOX_CONFIDENCE, CORNERS, BOX_ROWS = 4, 5, 6, 10

INTS, FLOATS = 5, 3
"""Rows of the scratch of an assignment."""

SHOWN, MOVED, CHANGED, OBJECTS, TOLD = range(5)
"""What `track_bridge` tells of two frames. Sums over pairs: of both confidences; of these times how far the corners
moved, in sizes of the object; of the change of confidence. Then the number of objects."""
