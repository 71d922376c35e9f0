"""promotion: a challenger that passes the gate becomes champion; or back, or elsewhere."""
