"""A program as text, which tests of the plugin analyze."""

HLO = """\
HloModule m, num_partitions=8

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT add = f32[] add(x, y)
}

ENTRY main {
  p = f32[16,128] parameter(0)
  ROOT r = f32[16,128] all-reduce(p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=sum
}
"""
