extern "C" __global__ void __launch_bounds__(128,12) warp_u8_3_kernel(uchar* __restrict__ out_ptr, float* __restrict__ xs_ptr, float* __restrict__ ys_ptr, int columns, double h0, double h1, double h2, double h3, double h4, double h5, double h6, double h7, double h8, double half, int height, int kind, int linear, int64_t m0, int64_t m1, int64_t m2, int64_t m3, int64_t m4, int64_t m5, int map_x_pitch, int map_y_pitch, int pictures, int replicate, int rows, int64_t source, int64_t source_picture, int source_pitch, int64_t target_picture, int target_pitch, float value0, float value1, float value2, float value3, int vectors, int width);
extern "C" __global__ void __launch_bounds__(128,12) warp_u8_3_kernel(uchar* __restrict__ out_ptr, float* __restrict__ xs_ptr, float* __restrict__ ys_ptr, int columns, double h0, double h1, double h2, double h3, double h4, double h5, double h6, double h7, double h8, double half, int height, int kind, int linear, int64_t m0, int64_t m1, int64_t m2, int64_t m3, int64_t m4, int64_t m5, int map_x_pitch, int map_y_pitch, int pictures, int replicate, int rows, int64_t source, int64_t source_picture, int source_pitch, int64_t target_picture, int target_pitch, float value0, float value1, float value2, float value3, int vectors, int width) {
  alignas(64) int x_ptr[1];
  alignas(64) int y_ptr[1];
  alignas(64) int whole_ptr[8];
  alignas(64) float weight_ptr[8];
  alignas(64) int64_t across_ptr[1];
  alignas(64) int64_t down_ptr[1];
  alignas(64) double column_ptr[1];
  alignas(64) double row_ptr[1];
  alignas(64) double w_ptr[1];
  alignas(64) double placed_ptr[1];
  alignas(64) double floor_ptr[1];
  alignas(64) double floor_ptr_1[1];
  alignas(64) int column_ptr_1[1];
  alignas(64) int64_t at_x_ptr[1];
  alignas(64) int64_t at_y_ptr[1];
  alignas(64) double placed_ptr_1[1];
  alignas(64) double floor_ptr_2[1];
  alignas(64) double placed_ptr_2[1];
  alignas(64) double floor_ptr_3[1];
  alignas(64) int inside_ptr[1];
  alignas(64) float value_ptr[4];
  alignas(64) int64_t skipped_ptr[1];
  alignas(64) int64_t at_ptr[1];
  alignas(64) int64_t places_ptr[4];
  alignas(64) uint words__ptr[24];
  alignas(64) uchar results_ptr[12];
  alignas(64) float values_ptr[3];
  alignas(64) float taken_ptr[12];
  alignas(64) int64_t base_ptr[1];
  alignas(64) int64_t base_ptr_1[1];
  alignas(64) uint shift_ptr[1];
  alignas(64) uint shift_ptr_1[1];
  alignas(64) float left_ptr[1];
  alignas(64) float right_ptr[1];
  alignas(64) int64_t base_ptr_2[1];
  alignas(64) uint shift_ptr_2[1];
  alignas(64) int column_ptr_2[1];
  alignas(64) int row_ptr_1[1];
  alignas(64) int64_t at_ptr_1[1];
  x_ptr[0] = ((((int)blockIdx.x) * 64) + (((int)threadIdx.x) * 4));
  y_ptr[0] = ((((int)blockIdx.y) * 8) + ((int)threadIdx.y));
  if ((x_ptr[0] < columns) && (y_ptr[0] < rows)) {
    if (kind == 0) {
      across_ptr[0] = (((m0 * ((int64_t)x_ptr[0])) + (m1 * ((int64_t)y_ptr[0]))) + m2);
      down_ptr[0] = (((m3 * ((int64_t)x_ptr[0])) + (m4 * ((int64_t)y_ptr[0]))) + m5);
      whole_ptr[0] = ((int)(across_ptr[0] >> (int64_t)32));
      whole_ptr[1] = ((int)(down_ptr[0] >> (int64_t)32));
      weight_ptr[0] = (((float)((int)((across_ptr[0] >> (int64_t)8) & (int64_t)16777215))) * 0x1p-24f/*5.960464e-08*/);
      weight_ptr[1] = (((float)((int)((down_ptr[0] >> (int64_t)8) & (int64_t)16777215))) * 0x1p-24f/*5.960464e-08*/);
      across_ptr[0] = (across_ptr[0] + m0);
      down_ptr[0] = (down_ptr[0] + m3);
      whole_ptr[2] = ((int)(across_ptr[0] >> (int64_t)32));
      whole_ptr[3] = ((int)(down_ptr[0] >> (int64_t)32));
      weight_ptr[2] = (((float)((int)((across_ptr[0] >> (int64_t)8) & (int64_t)16777215))) * 0x1p-24f/*5.960464e-08*/);
      weight_ptr[3] = (((float)((int)((down_ptr[0] >> (int64_t)8) & (int64_t)16777215))) * 0x1p-24f/*5.960464e-08*/);
      across_ptr[0] = (across_ptr[0] + m0);
      down_ptr[0] = (down_ptr[0] + m3);
      whole_ptr[4] = ((int)(across_ptr[0] >> (int64_t)32));
      whole_ptr[5] = ((int)(down_ptr[0] >> (int64_t)32));
      weight_ptr[4] = (((float)((int)((across_ptr[0] >> (int64_t)8) & (int64_t)16777215))) * 0x1p-24f/*5.960464e-08*/);
      weight_ptr[5] = (((float)((int)((down_ptr[0] >> (int64_t)8) & (int64_t)16777215))) * 0x1p-24f/*5.960464e-08*/);
      across_ptr[0] = (across_ptr[0] + m0);
      down_ptr[0] = (down_ptr[0] + m3);
      whole_ptr[6] = ((int)(across_ptr[0] >> (int64_t)32));
      whole_ptr[7] = ((int)(down_ptr[0] >> (int64_t)32));
      weight_ptr[6] = (((float)((int)((across_ptr[0] >> (int64_t)8) & (int64_t)16777215))) * 0x1p-24f/*5.960464e-08*/);
      weight_ptr[7] = (((float)((int)((down_ptr[0] >> (int64_t)8) & (int64_t)16777215))) * 0x1p-24f/*5.960464e-08*/);
      across_ptr[0] = (across_ptr[0] + m0);
      down_ptr[0] = (down_ptr[0] + m3);
    } else {
      if (kind == 1) {
        column_ptr[0] = ((double)x_ptr[0]);
        row_ptr[0] = ((double)y_ptr[0]);
        w_ptr[0] = ((h6 * column_ptr[0]) + ((h7 * row_ptr[0]) + h8));
        w_ptr[0] = ((1.000000000000000 - ((double)(w_ptr[0] == 0.000000000000000))) / (w_ptr[0] + ((double)(w_ptr[0] == 0.000000000000000))));
        double condval;
        if (-1073741824.000000000000000 < (((h0 * column_ptr[0]) + ((h1 * row_ptr[0]) + h2)) * w_ptr[0])) {
          condval = (((h0 * column_ptr[0]) + ((h1 * row_ptr[0]) + h2)) * w_ptr[0]);
        } else {
          condval = -1073741824.000000000000000;
        }
        placed_ptr[0] = (min(condval, 1073741824.000000000000000) + half);
        floor_ptr[0] = floor(placed_ptr[0]);
        whole_ptr[0] = ((int)floor_ptr[0]);
        weight_ptr[0] = ((float)(placed_ptr[0] - floor_ptr[0]));
        double condval_1;
        if (-1073741824.000000000000000 < (((h3 * column_ptr[0]) + ((h4 * row_ptr[0]) + h5)) * w_ptr[0])) {
          condval_1 = (((h3 * column_ptr[0]) + ((h4 * row_ptr[0]) + h5)) * w_ptr[0]);
        } else {
          condval_1 = -1073741824.000000000000000;
        }
        column_ptr[0] = (min(condval_1, 1073741824.000000000000000) + half);
        floor_ptr_1[0] = floor(column_ptr[0]);
        whole_ptr[1] = ((int)floor_ptr_1[0]);
        weight_ptr[1] = ((float)(column_ptr[0] - floor_ptr_1[0]));
        column_ptr[0] = ((double)(x_ptr[0] + 1));
        row_ptr[0] = ((double)y_ptr[0]);
        w_ptr[0] = ((h6 * column_ptr[0]) + ((h7 * row_ptr[0]) + h8));
        w_ptr[0] = ((1.000000000000000 - ((double)(w_ptr[0] == 0.000000000000000))) / (w_ptr[0] + ((double)(w_ptr[0] == 0.000000000000000))));
        double condval_2;
        if (-1073741824.000000000000000 < (((h0 * column_ptr[0]) + ((h1 * row_ptr[0]) + h2)) * w_ptr[0])) {
          condval_2 = (((h0 * column_ptr[0]) + ((h1 * row_ptr[0]) + h2)) * w_ptr[0]);
        } else {
          condval_2 = -1073741824.000000000000000;
        }
        placed_ptr[0] = (min(condval_2, 1073741824.000000000000000) + half);
        floor_ptr[0] = floor(placed_ptr[0]);
        whole_ptr[2] = ((int)floor_ptr[0]);
        weight_ptr[2] = ((float)(placed_ptr[0] - floor_ptr[0]));
        double condval_3;
        if (-1073741824.000000000000000 < (((h3 * column_ptr[0]) + ((h4 * row_ptr[0]) + h5)) * w_ptr[0])) {
          condval_3 = (((h3 * column_ptr[0]) + ((h4 * row_ptr[0]) + h5)) * w_ptr[0]);
        } else {
          condval_3 = -1073741824.000000000000000;
        }
        column_ptr[0] = (min(condval_3, 1073741824.000000000000000) + half);
        floor_ptr_1[0] = floor(column_ptr[0]);
        whole_ptr[3] = ((int)floor_ptr_1[0]);
        weight_ptr[3] = ((float)(column_ptr[0] - floor_ptr_1[0]));
        column_ptr[0] = ((double)(x_ptr[0] + 2));
        row_ptr[0] = ((double)y_ptr[0]);
        w_ptr[0] = ((h6 * column_ptr[0]) + ((h7 * row_ptr[0]) + h8));
        w_ptr[0] = ((1.000000000000000 - ((double)(w_ptr[0] == 0.000000000000000))) / (w_ptr[0] + ((double)(w_ptr[0] == 0.000000000000000))));
        double condval_4;
        if (-1073741824.000000000000000 < (((h0 * column_ptr[0]) + ((h1 * row_ptr[0]) + h2)) * w_ptr[0])) {
          condval_4 = (((h0 * column_ptr[0]) + ((h1 * row_ptr[0]) + h2)) * w_ptr[0]);
        } else {
          condval_4 = -1073741824.000000000000000;
        }
        placed_ptr[0] = (min(condval_4, 1073741824.000000000000000) + half);
        floor_ptr[0] = floor(placed_ptr[0]);
        whole_ptr[4] = ((int)floor_ptr[0]);
        weight_ptr[4] = ((float)(placed_ptr[0] - floor_ptr[0]));
        double condval_5;
        if (-1073741824.000000000000000 < (((h3 * column_ptr[0]) + ((h4 * row_ptr[0]) + h5)) * w_ptr[0])) {
          condval_5 = (((h3 * column_ptr[0]) + ((h4 * row_ptr[0]) + h5)) * w_ptr[0]);
        } else {
          condval_5 = -1073741824.000000000000000;
        }
        column_ptr[0] = (min(condval_5, 1073741824.000000000000000) + half);
        floor_ptr_1[0] = floor(column_ptr[0]);
        whole_ptr[5] = ((int)floor_ptr_1[0]);
        weight_ptr[5] = ((float)(column_ptr[0] - floor_ptr_1[0]));
        column_ptr[0] = ((double)(x_ptr[0] + 3));
        row_ptr[0] = ((double)y_ptr[0]);
        w_ptr[0] = ((h6 * column_ptr[0]) + ((h7 * row_ptr[0]) + h8));
        w_ptr[0] = ((1.000000000000000 - ((double)(w_ptr[0] == 0.000000000000000))) / (w_ptr[0] + ((double)(w_ptr[0] == 0.000000000000000))));
        double condval_6;
        if (-1073741824.000000000000000 < (((h0 * column_ptr[0]) + ((h1 * row_ptr[0]) + h2)) * w_ptr[0])) {
          condval_6 = (((h0 * column_ptr[0]) + ((h1 * row_ptr[0]) + h2)) * w_ptr[0]);
        } else {
          condval_6 = -1073741824.000000000000000;
        }
        placed_ptr[0] = (min(condval_6, 1073741824.000000000000000) + half);
        floor_ptr[0] = floor(placed_ptr[0]);
        whole_ptr[6] = ((int)floor_ptr[0]);
        weight_ptr[6] = ((float)(placed_ptr[0] - floor_ptr[0]));
        double condval_7;
        if (-1073741824.000000000000000 < (((h3 * column_ptr[0]) + ((h4 * row_ptr[0]) + h5)) * w_ptr[0])) {
          condval_7 = (((h3 * column_ptr[0]) + ((h4 * row_ptr[0]) + h5)) * w_ptr[0]);
        } else {
          condval_7 = -1073741824.000000000000000;
        }
        column_ptr[0] = (min(condval_7, 1073741824.000000000000000) + half);
        floor_ptr_1[0] = floor(column_ptr[0]);
        whole_ptr[7] = ((int)floor_ptr_1[0]);
        weight_ptr[7] = ((float)(column_ptr[0] - floor_ptr_1[0]));
      } else {
        int cse_v1 = (columns - 1);
        column_ptr_1[0] = min(x_ptr[0], (columns - 1));
        int64_t cse_v2 = ((int64_t)map_x_pitch);
        at_x_ptr[0] = ((((int64_t)y_ptr[0]) * ((int64_t)map_x_pitch)) + ((int64_t)column_ptr_1[0]));
        int64_t cse_v3 = ((int64_t)map_y_pitch);
        at_y_ptr[0] = ((((int64_t)y_ptr[0]) * ((int64_t)map_y_pitch)) + ((int64_t)column_ptr_1[0]));
        double condval_8;
        if (-1073741824.000000000000000 < ((double)xs_ptr[at_x_ptr[0]])) {
          condval_8 = ((double)xs_ptr[at_x_ptr[0]]);
        } else {
          condval_8 = -1073741824.000000000000000;
        }
        placed_ptr_1[0] = (min(condval_8, 1073741824.000000000000000) + half);
        floor_ptr_2[0] = floor(placed_ptr_1[0]);
        whole_ptr[0] = ((int)floor_ptr_2[0]);
        weight_ptr[0] = ((float)(placed_ptr_1[0] - floor_ptr_2[0]));
        double condval_9;
        if (-1073741824.000000000000000 < ((double)ys_ptr[at_y_ptr[0]])) {
          condval_9 = ((double)ys_ptr[at_y_ptr[0]]);
        } else {
          condval_9 = -1073741824.000000000000000;
        }
        placed_ptr_2[0] = (min(condval_9, 1073741824.000000000000000) + half);
        floor_ptr_3[0] = floor(placed_ptr_2[0]);
        whole_ptr[1] = ((int)floor_ptr_3[0]);
        weight_ptr[1] = ((float)(placed_ptr_2[0] - floor_ptr_3[0]));
        column_ptr_1[0] = min((x_ptr[0] + 1), (columns - 1));
        at_x_ptr[0] = ((((int64_t)y_ptr[0]) * ((int64_t)map_x_pitch)) + ((int64_t)column_ptr_1[0]));
        at_y_ptr[0] = ((((int64_t)y_ptr[0]) * ((int64_t)map_y_pitch)) + ((int64_t)column_ptr_1[0]));
        double condval_10;
        if (-1073741824.000000000000000 < ((double)xs_ptr[at_x_ptr[0]])) {
          condval_10 = ((double)xs_ptr[at_x_ptr[0]]);
        } else {
          condval_10 = -1073741824.000000000000000;
        }
        placed_ptr_1[0] = (min(condval_10, 1073741824.000000000000000) + half);
        floor_ptr_2[0] = floor(placed_ptr_1[0]);
        whole_ptr[2] = ((int)floor_ptr_2[0]);
        weight_ptr[2] = ((float)(placed_ptr_1[0] - floor_ptr_2[0]));
        double condval_11;
        if (-1073741824.000000000000000 < ((double)ys_ptr[at_y_ptr[0]])) {
          condval_11 = ((double)ys_ptr[at_y_ptr[0]]);
        } else {
          condval_11 = -1073741824.000000000000000;
        }
        placed_ptr_2[0] = (min(condval_11, 1073741824.000000000000000) + half);
        floor_ptr_3[0] = floor(placed_ptr_2[0]);
        whole_ptr[3] = ((int)floor_ptr_3[0]);
        weight_ptr[3] = ((float)(placed_ptr_2[0] - floor_ptr_3[0]));
        column_ptr_1[0] = min((x_ptr[0] + 2), (columns - 1));
        at_x_ptr[0] = ((((int64_t)y_ptr[0]) * ((int64_t)map_x_pitch)) + ((int64_t)column_ptr_1[0]));
        at_y_ptr[0] = ((((int64_t)y_ptr[0]) * ((int64_t)map_y_pitch)) + ((int64_t)column_ptr_1[0]));
        double condval_12;
        if (-1073741824.000000000000000 < ((double)xs_ptr[at_x_ptr[0]])) {
          condval_12 = ((double)xs_ptr[at_x_ptr[0]]);
        } else {
          condval_12 = -1073741824.000000000000000;
        }
        placed_ptr_1[0] = (min(condval_12, 1073741824.000000000000000) + half);
        floor_ptr_2[0] = floor(placed_ptr_1[0]);
        whole_ptr[4] = ((int)floor_ptr_2[0]);
        weight_ptr[4] = ((float)(placed_ptr_1[0] - floor_ptr_2[0]));
        double condval_13;
        if (-1073741824.000000000000000 < ((double)ys_ptr[at_y_ptr[0]])) {
          condval_13 = ((double)ys_ptr[at_y_ptr[0]]);
        } else {
          condval_13 = -1073741824.000000000000000;
        }
        placed_ptr_2[0] = (min(condval_13, 1073741824.000000000000000) + half);
        floor_ptr_3[0] = floor(placed_ptr_2[0]);
        whole_ptr[5] = ((int)floor_ptr_3[0]);
        weight_ptr[5] = ((float)(placed_ptr_2[0] - floor_ptr_3[0]));
        column_ptr_1[0] = min((x_ptr[0] + 3), (columns - 1));
        at_x_ptr[0] = ((((int64_t)y_ptr[0]) * ((int64_t)map_x_pitch)) + ((int64_t)column_ptr_1[0]));
        at_y_ptr[0] = ((((int64_t)y_ptr[0]) * ((int64_t)map_y_pitch)) + ((int64_t)column_ptr_1[0]));
        double condval_14;
        if (-1073741824.000000000000000 < ((double)xs_ptr[at_x_ptr[0]])) {
          condval_14 = ((double)xs_ptr[at_x_ptr[0]]);
        } else {
          condval_14 = -1073741824.000000000000000;
        }
        placed_ptr_1[0] = (min(condval_14, 1073741824.000000000000000) + half);
        floor_ptr_2[0] = floor(placed_ptr_1[0]);
        whole_ptr[6] = ((int)floor_ptr_2[0]);
        weight_ptr[6] = ((float)(placed_ptr_1[0] - floor_ptr_2[0]));
        double condval_15;
        if (-1073741824.000000000000000 < ((double)ys_ptr[at_y_ptr[0]])) {
          condval_15 = ((double)ys_ptr[at_y_ptr[0]]);
        } else {
          condval_15 = -1073741824.000000000000000;
        }
        placed_ptr_2[0] = (min(condval_15, 1073741824.000000000000000) + half);
        floor_ptr_3[0] = floor(placed_ptr_2[0]);
        whole_ptr[7] = ((int)floor_ptr_3[0]);
        weight_ptr[7] = ((float)(placed_ptr_2[0] - floor_ptr_3[0]));
      }
    }
    inside_ptr[0] = 1;
    int cse_v4 = (height - 1);
    uint cse_v8 = ((uint)(height - 1));
    uint cse_v10 = ((uint)max((width - 4), 0));
    if ((((uint)max((width - 4), 0)) <= ((uint)whole_ptr[0])) || (((uint)(height - 1)) <= ((uint)whole_ptr[1]))) {
      inside_ptr[0] = 0;
    }
    if ((((uint)max((width - 4), 0)) <= ((uint)whole_ptr[2])) || (((uint)(height - 1)) <= ((uint)whole_ptr[3]))) {
      inside_ptr[0] = 0;
    }
    if ((((uint)max((width - 4), 0)) <= ((uint)whole_ptr[4])) || (((uint)(height - 1)) <= ((uint)whole_ptr[5]))) {
      inside_ptr[0] = 0;
    }
    if ((((uint)max((width - 4), 0)) <= ((uint)whole_ptr[6])) || (((uint)(height - 1)) <= ((uint)whole_ptr[7]))) {
      inside_ptr[0] = 0;
    }
    value_ptr[0] = value0;
    value_ptr[1] = value1;
    value_ptr[2] = value2;
    value_ptr[3] = value3;
    int64_t cse_v5 = ((int64_t)((int)blockIdx.z));
    skipped_ptr[0] = (((int64_t)((int)blockIdx.z)) * source_picture);
    skipped_ptr[0] = (source + skipped_ptr[0]);
    at_ptr[0] = (((((int64_t)x_ptr[0]) * (int64_t)3) + (((int64_t)((int)blockIdx.z)) * target_picture)) + (((int64_t)y_ptr[0]) * ((int64_t)target_pitch)));
    int64_t cse_v6 = ((int64_t)source_pitch);
    if (inside_ptr[0] != 0) {
      places_ptr[0] = (((((int64_t)whole_ptr[0]) * (int64_t)3) + skipped_ptr[0]) + (((int64_t)whole_ptr[1]) * ((int64_t)source_pitch)));
      places_ptr[1] = (((((int64_t)whole_ptr[2]) * (int64_t)3) + skipped_ptr[0]) + (((int64_t)whole_ptr[3]) * ((int64_t)source_pitch)));
      places_ptr[2] = (((((int64_t)whole_ptr[4]) * (int64_t)3) + skipped_ptr[0]) + (((int64_t)whole_ptr[5]) * ((int64_t)source_pitch)));
      places_ptr[3] = (((((int64_t)whole_ptr[6]) * (int64_t)3) + skipped_ptr[0]) + (((int64_t)whole_ptr[7]) * ((int64_t)source_pitch)));
      if (linear != 0) {
        base_ptr[0] = (places_ptr[0] & (int64_t)-4);
        words__ptr[0] = load_pair_u16(base_ptr[0]);
        words__ptr[1] = load_pair_u16((base_ptr[0] + (int64_t)4));
        words__ptr[2] = load_pair_u16((base_ptr[0] + (int64_t)8));
        base_ptr_1[0] = ((places_ptr[0] + ((int64_t)source_pitch)) & (int64_t)-4);
        words__ptr[3] = load_pair_u16(base_ptr_1[0]);
        words__ptr[4] = load_pair_u16((base_ptr_1[0] + (int64_t)4));
        words__ptr[5] = load_pair_u16((base_ptr_1[0] + (int64_t)8));
        base_ptr[0] = (places_ptr[1] & (int64_t)-4);
        words__ptr[6] = load_pair_u16(base_ptr[0]);
        words__ptr[7] = load_pair_u16((base_ptr[0] + (int64_t)4));
        words__ptr[8] = load_pair_u16((base_ptr[0] + (int64_t)8));
        base_ptr_1[0] = ((places_ptr[1] + ((int64_t)source_pitch)) & (int64_t)-4);
        words__ptr[9] = load_pair_u16(base_ptr_1[0]);
        words__ptr[10] = load_pair_u16((base_ptr_1[0] + (int64_t)4));
        words__ptr[11] = load_pair_u16((base_ptr_1[0] + (int64_t)8));
        base_ptr[0] = (places_ptr[2] & (int64_t)-4);
        words__ptr[12] = load_pair_u16(base_ptr[0]);
        words__ptr[13] = load_pair_u16((base_ptr[0] + (int64_t)4));
        words__ptr[14] = load_pair_u16((base_ptr[0] + (int64_t)8));
        base_ptr_1[0] = ((places_ptr[2] + ((int64_t)source_pitch)) & (int64_t)-4);
        words__ptr[15] = load_pair_u16(base_ptr_1[0]);
        words__ptr[16] = load_pair_u16((base_ptr_1[0] + (int64_t)4));
        words__ptr[17] = load_pair_u16((base_ptr_1[0] + (int64_t)8));
        base_ptr[0] = (places_ptr[3] & (int64_t)-4);
        words__ptr[18] = load_pair_u16(base_ptr[0]);
        words__ptr[19] = load_pair_u16((base_ptr[0] + (int64_t)4));
        words__ptr[20] = load_pair_u16((base_ptr[0] + (int64_t)8));
        base_ptr_1[0] = ((places_ptr[3] + ((int64_t)source_pitch)) & (int64_t)-4);
        words__ptr[21] = load_pair_u16(base_ptr_1[0]);
        words__ptr[22] = load_pair_u16((base_ptr_1[0] + (int64_t)4));
        words__ptr[23] = load_pair_u16((base_ptr_1[0] + (int64_t)8));
        shift_ptr[0] = (((uint)places_ptr[0]) * (uint)8);
        words__ptr[0] = shifted_pair(words__ptr[0], words__ptr[1], shift_ptr[0]);
        words__ptr[1] = shifted_pair(words__ptr[1], words__ptr[2], shift_ptr[0]);
        shift_ptr_1[0] = (((uint)(places_ptr[0] + ((int64_t)source_pitch))) * (uint)8);
        words__ptr[3] = shifted_pair(words__ptr[3], words__ptr[4], shift_ptr_1[0]);
        words__ptr[4] = shifted_pair(words__ptr[4], words__ptr[5], shift_ptr_1[0]);
        left_ptr[0] = (byte_times_2_16(words__ptr[0], 0) + ((byte_times_2_16(words__ptr[3], 0) - byte_times_2_16(words__ptr[0], 0)) * weight_ptr[1]));
        right_ptr[0] = (byte_times_2_16(words__ptr[0], 3) + ((byte_times_2_16(words__ptr[3], 3) - byte_times_2_16(words__ptr[0], 3)) * weight_ptr[1]));
          float v_ = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[0]);
        results_ptr[0] = ((uchar)(((*(uint *)(&(v_))) + (uint)32768) >> (uint)16));
        left_ptr[0] = (byte_times_2_16(words__ptr[0], 1) + ((byte_times_2_16(words__ptr[3], 1) - byte_times_2_16(words__ptr[0], 1)) * weight_ptr[1]));
        right_ptr[0] = (byte_times_2_16(words__ptr[1], 0) + ((byte_times_2_16(words__ptr[4], 0) - byte_times_2_16(words__ptr[1], 0)) * weight_ptr[1]));
          float v__1 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[0]);
        results_ptr[1] = ((uchar)(((*(uint *)(&(v__1))) + (uint)32768) >> (uint)16));
        left_ptr[0] = (byte_times_2_16(words__ptr[0], 2) + ((byte_times_2_16(words__ptr[3], 2) - byte_times_2_16(words__ptr[0], 2)) * weight_ptr[1]));
        right_ptr[0] = (byte_times_2_16(words__ptr[1], 1) + ((byte_times_2_16(words__ptr[4], 1) - byte_times_2_16(words__ptr[1], 1)) * weight_ptr[1]));
          float v__2 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[0]);
        results_ptr[2] = ((uchar)(((*(uint *)(&(v__2))) + (uint)32768) >> (uint)16));
        shift_ptr[0] = (((uint)places_ptr[1]) * (uint)8);
        words__ptr[6] = shifted_pair(words__ptr[6], words__ptr[7], shift_ptr[0]);
        words__ptr[7] = shifted_pair(words__ptr[7], words__ptr[8], shift_ptr[0]);
        shift_ptr_1[0] = (((uint)(places_ptr[1] + ((int64_t)source_pitch))) * (uint)8);
        words__ptr[9] = shifted_pair(words__ptr[9], words__ptr[10], shift_ptr_1[0]);
        words__ptr[10] = shifted_pair(words__ptr[10], words__ptr[11], shift_ptr_1[0]);
        left_ptr[0] = (byte_times_2_16(words__ptr[6], 0) + ((byte_times_2_16(words__ptr[9], 0) - byte_times_2_16(words__ptr[6], 0)) * weight_ptr[3]));
        right_ptr[0] = (byte_times_2_16(words__ptr[6], 3) + ((byte_times_2_16(words__ptr[9], 3) - byte_times_2_16(words__ptr[6], 3)) * weight_ptr[3]));
          float v__3 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[2]);
        results_ptr[3] = ((uchar)(((*(uint *)(&(v__3))) + (uint)32768) >> (uint)16));
        left_ptr[0] = (byte_times_2_16(words__ptr[6], 1) + ((byte_times_2_16(words__ptr[9], 1) - byte_times_2_16(words__ptr[6], 1)) * weight_ptr[3]));
        right_ptr[0] = (byte_times_2_16(words__ptr[7], 0) + ((byte_times_2_16(words__ptr[10], 0) - byte_times_2_16(words__ptr[7], 0)) * weight_ptr[3]));
          float v__4 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[2]);
        results_ptr[4] = ((uchar)(((*(uint *)(&(v__4))) + (uint)32768) >> (uint)16));
        left_ptr[0] = (byte_times_2_16(words__ptr[6], 2) + ((byte_times_2_16(words__ptr[9], 2) - byte_times_2_16(words__ptr[6], 2)) * weight_ptr[3]));
        right_ptr[0] = (byte_times_2_16(words__ptr[7], 1) + ((byte_times_2_16(words__ptr[10], 1) - byte_times_2_16(words__ptr[7], 1)) * weight_ptr[3]));
          float v__5 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[2]);
        results_ptr[5] = ((uchar)(((*(uint *)(&(v__5))) + (uint)32768) >> (uint)16));
        shift_ptr[0] = (((uint)places_ptr[2]) * (uint)8);
        words__ptr[12] = shifted_pair(words__ptr[12], words__ptr[13], shift_ptr[0]);
        words__ptr[13] = shifted_pair(words__ptr[13], words__ptr[14], shift_ptr[0]);
        shift_ptr_1[0] = (((uint)(places_ptr[2] + ((int64_t)source_pitch))) * (uint)8);
        words__ptr[15] = shifted_pair(words__ptr[15], words__ptr[16], shift_ptr_1[0]);
        words__ptr[16] = shifted_pair(words__ptr[16], words__ptr[17], shift_ptr_1[0]);
        left_ptr[0] = (byte_times_2_16(words__ptr[12], 0) + ((byte_times_2_16(words__ptr[15], 0) - byte_times_2_16(words__ptr[12], 0)) * weight_ptr[5]));
        right_ptr[0] = (byte_times_2_16(words__ptr[12], 3) + ((byte_times_2_16(words__ptr[15], 3) - byte_times_2_16(words__ptr[12], 3)) * weight_ptr[5]));
          float v__6 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[4]);
        results_ptr[6] = ((uchar)(((*(uint *)(&(v__6))) + (uint)32768) >> (uint)16));
        left_ptr[0] = (byte_times_2_16(words__ptr[12], 1) + ((byte_times_2_16(words__ptr[15], 1) - byte_times_2_16(words__ptr[12], 1)) * weight_ptr[5]));
        right_ptr[0] = (byte_times_2_16(words__ptr[13], 0) + ((byte_times_2_16(words__ptr[16], 0) - byte_times_2_16(words__ptr[13], 0)) * weight_ptr[5]));
          float v__7 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[4]);
        results_ptr[7] = ((uchar)(((*(uint *)(&(v__7))) + (uint)32768) >> (uint)16));
        left_ptr[0] = (byte_times_2_16(words__ptr[12], 2) + ((byte_times_2_16(words__ptr[15], 2) - byte_times_2_16(words__ptr[12], 2)) * weight_ptr[5]));
        right_ptr[0] = (byte_times_2_16(words__ptr[13], 1) + ((byte_times_2_16(words__ptr[16], 1) - byte_times_2_16(words__ptr[13], 1)) * weight_ptr[5]));
          float v__8 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[4]);
        results_ptr[8] = ((uchar)(((*(uint *)(&(v__8))) + (uint)32768) >> (uint)16));
        shift_ptr[0] = (((uint)places_ptr[3]) * (uint)8);
        words__ptr[18] = shifted_pair(words__ptr[18], words__ptr[19], shift_ptr[0]);
        words__ptr[19] = shifted_pair(words__ptr[19], words__ptr[20], shift_ptr[0]);
        shift_ptr_1[0] = (((uint)(places_ptr[3] + ((int64_t)source_pitch))) * (uint)8);
        words__ptr[21] = shifted_pair(words__ptr[21], words__ptr[22], shift_ptr_1[0]);
        words__ptr[22] = shifted_pair(words__ptr[22], words__ptr[23], shift_ptr_1[0]);
        left_ptr[0] = (byte_times_2_16(words__ptr[18], 0) + ((byte_times_2_16(words__ptr[21], 0) - byte_times_2_16(words__ptr[18], 0)) * weight_ptr[7]));
        right_ptr[0] = (byte_times_2_16(words__ptr[18], 3) + ((byte_times_2_16(words__ptr[21], 3) - byte_times_2_16(words__ptr[18], 3)) * weight_ptr[7]));
          float v__9 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[6]);
        results_ptr[9] = ((uchar)(((*(uint *)(&(v__9))) + (uint)32768) >> (uint)16));
        left_ptr[0] = (byte_times_2_16(words__ptr[18], 1) + ((byte_times_2_16(words__ptr[21], 1) - byte_times_2_16(words__ptr[18], 1)) * weight_ptr[7]));
        right_ptr[0] = (byte_times_2_16(words__ptr[19], 0) + ((byte_times_2_16(words__ptr[22], 0) - byte_times_2_16(words__ptr[19], 0)) * weight_ptr[7]));
          float v__10 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[6]);
        results_ptr[10] = ((uchar)(((*(uint *)(&(v__10))) + (uint)32768) >> (uint)16));
        left_ptr[0] = (byte_times_2_16(words__ptr[18], 2) + ((byte_times_2_16(words__ptr[21], 2) - byte_times_2_16(words__ptr[18], 2)) * weight_ptr[7]));
        right_ptr[0] = (byte_times_2_16(words__ptr[19], 1) + ((byte_times_2_16(words__ptr[22], 1) - byte_times_2_16(words__ptr[19], 1)) * weight_ptr[7]));
          float v__11 = left_ptr[0] + ((right_ptr[0] - left_ptr[0]) * weight_ptr[6]);
        results_ptr[11] = ((uchar)(((*(uint *)(&(v__11))) + (uint)32768) >> (uint)16));
      } else {
        base_ptr_2[0] = (places_ptr[0] & (int64_t)-4);
        words__ptr[0] = load_pair_u16(base_ptr_2[0]);
        words__ptr[1] = load_pair_u16((base_ptr_2[0] + (int64_t)4));
        words__ptr[2] = load_pair_u16((base_ptr_2[0] + (int64_t)8));
        base_ptr_2[0] = (places_ptr[1] & (int64_t)-4);
        words__ptr[6] = load_pair_u16(base_ptr_2[0]);
        words__ptr[7] = load_pair_u16((base_ptr_2[0] + (int64_t)4));
        words__ptr[8] = load_pair_u16((base_ptr_2[0] + (int64_t)8));
        base_ptr_2[0] = (places_ptr[2] & (int64_t)-4);
        words__ptr[12] = load_pair_u16(base_ptr_2[0]);
        words__ptr[13] = load_pair_u16((base_ptr_2[0] + (int64_t)4));
        words__ptr[14] = load_pair_u16((base_ptr_2[0] + (int64_t)8));
        base_ptr_2[0] = (places_ptr[3] & (int64_t)-4);
        words__ptr[18] = load_pair_u16(base_ptr_2[0]);
        words__ptr[19] = load_pair_u16((base_ptr_2[0] + (int64_t)4));
        words__ptr[20] = load_pair_u16((base_ptr_2[0] + (int64_t)8));
        shift_ptr_2[0] = (((uint)places_ptr[0]) * (uint)8);
        words__ptr[0] = shifted_pair(words__ptr[0], words__ptr[1], shift_ptr_2[0]);
        words__ptr[1] = shifted_pair(words__ptr[1], words__ptr[2], shift_ptr_2[0]);
        results_ptr[0] = ((uchar)(words__ptr[0] >> (uint)0));
        results_ptr[1] = ((uchar)(words__ptr[0] >> (uint)8));
        results_ptr[2] = ((uchar)(words__ptr[0] >> (uint)16));
        shift_ptr_2[0] = (((uint)places_ptr[1]) * (uint)8);
        words__ptr[6] = shifted_pair(words__ptr[6], words__ptr[7], shift_ptr_2[0]);
        words__ptr[7] = shifted_pair(words__ptr[7], words__ptr[8], shift_ptr_2[0]);
        results_ptr[3] = ((uchar)(words__ptr[6] >> (uint)0));
        results_ptr[4] = ((uchar)(words__ptr[6] >> (uint)8));
        results_ptr[5] = ((uchar)(words__ptr[6] >> (uint)16));
        shift_ptr_2[0] = (((uint)places_ptr[2]) * (uint)8);
        words__ptr[12] = shifted_pair(words__ptr[12], words__ptr[13], shift_ptr_2[0]);
        words__ptr[13] = shifted_pair(words__ptr[13], words__ptr[14], shift_ptr_2[0]);
        results_ptr[6] = ((uchar)(words__ptr[12] >> (uint)0));
        results_ptr[7] = ((uchar)(words__ptr[12] >> (uint)8));
        results_ptr[8] = ((uchar)(words__ptr[12] >> (uint)16));
        shift_ptr_2[0] = (((uint)places_ptr[3]) * (uint)8);
        words__ptr[18] = shifted_pair(words__ptr[18], words__ptr[19], shift_ptr_2[0]);
        words__ptr[19] = shifted_pair(words__ptr[19], words__ptr[20], shift_ptr_2[0]);
        results_ptr[9] = ((uchar)(words__ptr[18] >> (uint)0));
        results_ptr[10] = ((uchar)(words__ptr[18] >> (uint)8));
        results_ptr[11] = ((uchar)(words__ptr[18] >> (uint)16));
      }
      if (vectors != 0) {
        *(uint*)(out_ptr + at_ptr[0]) = *(uint*)(results_ptr + 0);
        *(uint*)(out_ptr + (at_ptr[0] + (int64_t)4)) = *(uint*)(results_ptr + 4);
        *(uint*)(out_ptr + (at_ptr[0] + (int64_t)8)) = *(uint*)(results_ptr + 8);
      } else {
        if (x_ptr[0] < columns) {
          out_ptr[at_ptr[0]] = results_ptr[0];
          out_ptr[(at_ptr[0] + (int64_t)1)] = results_ptr[1];
          out_ptr[(at_ptr[0] + (int64_t)2)] = results_ptr[2];
        }
        if ((x_ptr[0] + 1) < columns) {
          out_ptr[(at_ptr[0] + (int64_t)3)] = results_ptr[3];
          out_ptr[(at_ptr[0] + (int64_t)4)] = results_ptr[4];
          out_ptr[(at_ptr[0] + (int64_t)5)] = results_ptr[5];
        }
        if ((x_ptr[0] + 2) < columns) {
          out_ptr[(at_ptr[0] + (int64_t)6)] = results_ptr[6];
          out_ptr[(at_ptr[0] + (int64_t)7)] = results_ptr[7];
          out_ptr[(at_ptr[0] + (int64_t)8)] = results_ptr[8];
        }
        if ((x_ptr[0] + 3) < columns) {
          out_ptr[(at_ptr[0] + (int64_t)9)] = results_ptr[9];
          out_ptr[(at_ptr[0] + (int64_t)10)] = results_ptr[10];
          out_ptr[(at_ptr[0] + (int64_t)11)] = results_ptr[11];
        }
      }
    } else {
      for (int p = 0; p < min(4, (columns - x_ptr[0])); ++p) {
        int condval_16;
        if (p == 0) {
          condval_16 = whole_ptr[0];
        } else {
          int condval_17;
          if (p == 1) {
            condval_17 = whole_ptr[2];
          } else {
            int condval_18;
            if (p == 2) {
              condval_18 = whole_ptr[4];
            } else {
              condval_18 = whole_ptr[6];
            }
            condval_17 = condval_18;
          }
          condval_16 = condval_17;
        }
        int condval_19;
        if (p == 0) {
          condval_19 = whole_ptr[0];
        } else {
          int condval_20;
          if (p == 1) {
            condval_20 = whole_ptr[2];
          } else {
            int condval_21;
            if (p == 2) {
              condval_21 = whole_ptr[4];
            } else {
              condval_21 = whole_ptr[6];
            }
            condval_20 = condval_21;
          }
          condval_19 = condval_20;
        }
        int condval_22;
        if (p == 0) {
          condval_22 = whole_ptr[1];
        } else {
          int condval_23;
          if (p == 1) {
            condval_23 = whole_ptr[3];
          } else {
            int condval_24;
            if (p == 2) {
              condval_24 = whole_ptr[5];
            } else {
              condval_24 = whole_ptr[7];
            }
            condval_23 = condval_24;
          }
          condval_22 = condval_23;
        }
        int condval_25;
        if (p == 0) {
          condval_25 = whole_ptr[1];
        } else {
          int condval_26;
          if (p == 1) {
            condval_26 = whole_ptr[3];
          } else {
            int condval_27;
            if (p == 2) {
              condval_27 = whole_ptr[5];
            } else {
              condval_27 = whole_ptr[7];
            }
            condval_26 = condval_27;
          }
          condval_25 = condval_26;
        }
        if ((replicate == 0) && ((((condval_16 < -1) || (width <= condval_19)) || (condval_22 < -1)) || (height <= condval_25))) {
          values_ptr[0] = value_ptr[0];
          values_ptr[1] = value_ptr[1];
          values_ptr[2] = value_ptr[2];
        } else {
          int cse_v7 = (width - 1);
          int condval_28;
          if (p == 0) {
            condval_28 = whole_ptr[0];
          } else {
            int condval_29;
            if (p == 1) {
              condval_29 = whole_ptr[2];
            } else {
              int condval_30;
              if (p == 2) {
                condval_30 = whole_ptr[4];
              } else {
                condval_30 = whole_ptr[6];
              }
              condval_29 = condval_30;
            }
            condval_28 = condval_29;
          }
          column_ptr_2[0] = min(max(condval_28, 0), (width - 1));
          int condval_31;
          if (p == 0) {
            condval_31 = whole_ptr[1];
          } else {
            int condval_32;
            if (p == 1) {
              condval_32 = whole_ptr[3];
            } else {
              int condval_33;
              if (p == 2) {
                condval_33 = whole_ptr[5];
              } else {
                condval_33 = whole_ptr[7];
              }
              condval_32 = condval_33;
            }
            condval_31 = condval_32;
          }
          row_ptr_1[0] = min(max(condval_31, 0), (height - 1));
          at_ptr_1[0] = (((((int64_t)column_ptr_2[0]) * (int64_t)3) + skipped_ptr[0]) + (((int64_t)row_ptr_1[0]) * ((int64_t)source_pitch)));
          int condval_34;
          if (p == 0) {
            condval_34 = whole_ptr[0];
          } else {
            int condval_35;
            if (p == 1) {
              condval_35 = whole_ptr[2];
            } else {
              int condval_36;
              if (p == 2) {
                condval_36 = whole_ptr[4];
              } else {
                condval_36 = whole_ptr[6];
              }
              condval_35 = condval_36;
            }
            condval_34 = condval_35;
          }
          int condval_37;
          if (p == 0) {
            condval_37 = whole_ptr[1];
          } else {
            int condval_38;
            if (p == 1) {
              condval_38 = whole_ptr[3];
            } else {
              int condval_39;
              if (p == 2) {
                condval_39 = whole_ptr[5];
              } else {
                condval_39 = whole_ptr[7];
              }
              condval_38 = condval_39;
            }
            condval_37 = condval_38;
          }
          column_ptr_2[0] = (((int)((replicate != 0) || ((condval_34 == column_ptr_2[0]) && (condval_37 == row_ptr_1[0])))) - 1);
          taken_ptr[0] = load_u8(at_ptr_1[0]);
          taken_ptr[4] = load_u8((at_ptr_1[0] + (int64_t)1));
          taken_ptr[8] = load_u8((at_ptr_1[0] + (int64_t)2));
          taken_ptr[0] = chosen_f32(taken_ptr[0], value_ptr[0], column_ptr_2[0]);
          taken_ptr[4] = chosen_f32(taken_ptr[4], value_ptr[1], column_ptr_2[0]);
          taken_ptr[8] = chosen_f32(taken_ptr[8], value_ptr[2], column_ptr_2[0]);
          int condval_40;
          if (p == 0) {
            condval_40 = whole_ptr[0];
          } else {
            int condval_41;
            if (p == 1) {
              condval_41 = whole_ptr[2];
            } else {
              int condval_42;
              if (p == 2) {
                condval_42 = whole_ptr[4];
              } else {
                condval_42 = whole_ptr[6];
              }
              condval_41 = condval_42;
            }
            condval_40 = condval_41;
          }
          column_ptr_2[0] = min(max((condval_40 + 1), 0), (width - 1));
          int condval_43;
          if (p == 0) {
            condval_43 = whole_ptr[1];
          } else {
            int condval_44;
            if (p == 1) {
              condval_44 = whole_ptr[3];
            } else {
              int condval_45;
              if (p == 2) {
                condval_45 = whole_ptr[5];
              } else {
                condval_45 = whole_ptr[7];
              }
              condval_44 = condval_45;
            }
            condval_43 = condval_44;
          }
          row_ptr_1[0] = min(max(condval_43, 0), (height - 1));
          at_ptr_1[0] = (((((int64_t)column_ptr_2[0]) * (int64_t)3) + skipped_ptr[0]) + (((int64_t)row_ptr_1[0]) * ((int64_t)source_pitch)));
          int condval_46;
          if (p == 0) {
            condval_46 = whole_ptr[0];
          } else {
            int condval_47;
            if (p == 1) {
              condval_47 = whole_ptr[2];
            } else {
              int condval_48;
              if (p == 2) {
                condval_48 = whole_ptr[4];
              } else {
                condval_48 = whole_ptr[6];
              }
              condval_47 = condval_48;
            }
            condval_46 = condval_47;
          }
          int condval_49;
          if (p == 0) {
            condval_49 = whole_ptr[1];
          } else {
            int condval_50;
            if (p == 1) {
              condval_50 = whole_ptr[3];
            } else {
              int condval_51;
              if (p == 2) {
                condval_51 = whole_ptr[5];
              } else {
                condval_51 = whole_ptr[7];
              }
              condval_50 = condval_51;
            }
            condval_49 = condval_50;
          }
          column_ptr_2[0] = (((int)((replicate != 0) || (((condval_46 + 1) == column_ptr_2[0]) && (condval_49 == row_ptr_1[0])))) - 1);
          taken_ptr[1] = load_u8(at_ptr_1[0]);
          taken_ptr[5] = load_u8((at_ptr_1[0] + (int64_t)1));
          taken_ptr[9] = load_u8((at_ptr_1[0] + (int64_t)2));
          taken_ptr[1] = chosen_f32(taken_ptr[1], value_ptr[0], column_ptr_2[0]);
          taken_ptr[5] = chosen_f32(taken_ptr[5], value_ptr[1], column_ptr_2[0]);
          taken_ptr[9] = chosen_f32(taken_ptr[9], value_ptr[2], column_ptr_2[0]);
          int condval_52;
          if (p == 0) {
            condval_52 = whole_ptr[0];
          } else {
            int condval_53;
            if (p == 1) {
              condval_53 = whole_ptr[2];
            } else {
              int condval_54;
              if (p == 2) {
                condval_54 = whole_ptr[4];
              } else {
                condval_54 = whole_ptr[6];
              }
              condval_53 = condval_54;
            }
            condval_52 = condval_53;
          }
          column_ptr_2[0] = min(max(condval_52, 0), (width - 1));
          int condval_55;
          if (p == 0) {
            condval_55 = whole_ptr[1];
          } else {
            int condval_56;
            if (p == 1) {
              condval_56 = whole_ptr[3];
            } else {
              int condval_57;
              if (p == 2) {
                condval_57 = whole_ptr[5];
              } else {
                condval_57 = whole_ptr[7];
              }
              condval_56 = condval_57;
            }
            condval_55 = condval_56;
          }
          row_ptr_1[0] = min(max((condval_55 + 1), 0), (height - 1));
          at_ptr_1[0] = (((((int64_t)column_ptr_2[0]) * (int64_t)3) + skipped_ptr[0]) + (((int64_t)row_ptr_1[0]) * ((int64_t)source_pitch)));
          int condval_58;
          if (p == 0) {
            condval_58 = whole_ptr[0];
          } else {
            int condval_59;
            if (p == 1) {
              condval_59 = whole_ptr[2];
            } else {
              int condval_60;
              if (p == 2) {
                condval_60 = whole_ptr[4];
              } else {
                condval_60 = whole_ptr[6];
              }
              condval_59 = condval_60;
            }
            condval_58 = condval_59;
          }
          int condval_61;
          if (p == 0) {
            condval_61 = whole_ptr[1];
          } else {
            int condval_62;
            if (p == 1) {
              condval_62 = whole_ptr[3];
            } else {
              int condval_63;
              if (p == 2) {
                condval_63 = whole_ptr[5];
              } else {
                condval_63 = whole_ptr[7];
              }
              condval_62 = condval_63;
            }
            condval_61 = condval_62;
          }
          column_ptr_2[0] = (((int)((replicate != 0) || ((condval_58 == column_ptr_2[0]) && ((condval_61 + 1) == row_ptr_1[0])))) - 1);
          taken_ptr[2] = load_u8(at_ptr_1[0]);
          taken_ptr[6] = load_u8((at_ptr_1[0] + (int64_t)1));
          taken_ptr[10] = load_u8((at_ptr_1[0] + (int64_t)2));
          taken_ptr[2] = chosen_f32(taken_ptr[2], value_ptr[0], column_ptr_2[0]);
          taken_ptr[6] = chosen_f32(taken_ptr[6], value_ptr[1], column_ptr_2[0]);
          taken_ptr[10] = chosen_f32(taken_ptr[10], value_ptr[2], column_ptr_2[0]);
          int condval_64;
          if (p == 0) {
            condval_64 = whole_ptr[0];
          } else {
            int condval_65;
            if (p == 1) {
              condval_65 = whole_ptr[2];
            } else {
              int condval_66;
              if (p == 2) {
                condval_66 = whole_ptr[4];
              } else {
                condval_66 = whole_ptr[6];
              }
              condval_65 = condval_66;
            }
            condval_64 = condval_65;
          }
          column_ptr_2[0] = min(max((condval_64 + 1), 0), (width - 1));
          int condval_67;
          if (p == 0) {
            condval_67 = whole_ptr[1];
          } else {
            int condval_68;
            if (p == 1) {
              condval_68 = whole_ptr[3];
            } else {
              int condval_69;
              if (p == 2) {
                condval_69 = whole_ptr[5];
              } else {
                condval_69 = whole_ptr[7];
              }
              condval_68 = condval_69;
            }
            condval_67 = condval_68;
          }
          row_ptr_1[0] = min(max((condval_67 + 1), 0), (height - 1));
          at_ptr_1[0] = (((((int64_t)column_ptr_2[0]) * (int64_t)3) + skipped_ptr[0]) + (((int64_t)row_ptr_1[0]) * ((int64_t)source_pitch)));
          int condval_70;
          if (p == 0) {
            condval_70 = whole_ptr[0];
          } else {
            int condval_71;
            if (p == 1) {
              condval_71 = whole_ptr[2];
            } else {
              int condval_72;
              if (p == 2) {
                condval_72 = whole_ptr[4];
              } else {
                condval_72 = whole_ptr[6];
              }
              condval_71 = condval_72;
            }
            condval_70 = condval_71;
          }
          int condval_73;
          if (p == 0) {
            condval_73 = whole_ptr[1];
          } else {
            int condval_74;
            if (p == 1) {
              condval_74 = whole_ptr[3];
            } else {
              int condval_75;
              if (p == 2) {
                condval_75 = whole_ptr[5];
              } else {
                condval_75 = whole_ptr[7];
              }
              condval_74 = condval_75;
            }
            condval_73 = condval_74;
          }
          column_ptr_2[0] = (((int)((replicate != 0) || (((condval_70 + 1) == column_ptr_2[0]) && ((condval_73 + 1) == row_ptr_1[0])))) - 1);
          taken_ptr[3] = load_u8(at_ptr_1[0]);
          taken_ptr[7] = load_u8((at_ptr_1[0] + (int64_t)1));
          taken_ptr[11] = load_u8((at_ptr_1[0] + (int64_t)2));
          taken_ptr[3] = chosen_f32(taken_ptr[3], value_ptr[0], column_ptr_2[0]);
          taken_ptr[7] = chosen_f32(taken_ptr[7], value_ptr[1], column_ptr_2[0]);
          taken_ptr[11] = chosen_f32(taken_ptr[11], value_ptr[2], column_ptr_2[0]);
          values_ptr[0] = taken_ptr[0];
          if (linear != 0) {
            float condval_76;
            if (p == 0) {
              condval_76 = weight_ptr[1];
            } else {
              float condval_77;
              if (p == 1) {
                condval_77 = weight_ptr[3];
              } else {
                float condval_78;
                if (p == 2) {
                  condval_78 = weight_ptr[5];
                } else {
                  condval_78 = weight_ptr[7];
                }
                condval_77 = condval_78;
              }
              condval_76 = condval_77;
            }
            float condval_79;
            if (p == 0) {
              condval_79 = weight_ptr[1];
            } else {
              float condval_80;
              if (p == 1) {
                condval_80 = weight_ptr[3];
              } else {
                float condval_81;
                if (p == 2) {
                  condval_81 = weight_ptr[5];
                } else {
                  condval_81 = weight_ptr[7];
                }
                condval_80 = condval_81;
              }
              condval_79 = condval_80;
            }
            float condval_82;
            if (p == 0) {
              condval_82 = weight_ptr[1];
            } else {
              float condval_83;
              if (p == 1) {
                condval_83 = weight_ptr[3];
              } else {
                float condval_84;
                if (p == 2) {
                  condval_84 = weight_ptr[5];
                } else {
                  condval_84 = weight_ptr[7];
                }
                condval_83 = condval_84;
              }
              condval_82 = condval_83;
            }
            float condval_85;
            if (p == 0) {
              condval_85 = weight_ptr[0];
            } else {
              float condval_86;
              if (p == 1) {
                condval_86 = weight_ptr[2];
              } else {
                float condval_87;
                if (p == 2) {
                  condval_87 = weight_ptr[4];
                } else {
                  condval_87 = weight_ptr[6];
                }
                condval_86 = condval_87;
              }
              condval_85 = condval_86;
            }
            values_ptr[0] = ((taken_ptr[0] + ((taken_ptr[2] - taken_ptr[0]) * condval_76)) + (((taken_ptr[1] + ((taken_ptr[3] - taken_ptr[1]) * condval_79)) - (taken_ptr[0] + ((taken_ptr[2] - taken_ptr[0]) * condval_82))) * condval_85));
          }
          values_ptr[1] = taken_ptr[4];
          if (linear != 0) {
            float condval_88;
            if (p == 0) {
              condval_88 = weight_ptr[1];
            } else {
              float condval_89;
              if (p == 1) {
                condval_89 = weight_ptr[3];
              } else {
                float condval_90;
                if (p == 2) {
                  condval_90 = weight_ptr[5];
                } else {
                  condval_90 = weight_ptr[7];
                }
                condval_89 = condval_90;
              }
              condval_88 = condval_89;
            }
            float condval_91;
            if (p == 0) {
              condval_91 = weight_ptr[1];
            } else {
              float condval_92;
              if (p == 1) {
                condval_92 = weight_ptr[3];
              } else {
                float condval_93;
                if (p == 2) {
                  condval_93 = weight_ptr[5];
                } else {
                  condval_93 = weight_ptr[7];
                }
                condval_92 = condval_93;
              }
              condval_91 = condval_92;
            }
            float condval_94;
            if (p == 0) {
              condval_94 = weight_ptr[1];
            } else {
              float condval_95;
              if (p == 1) {
                condval_95 = weight_ptr[3];
              } else {
                float condval_96;
                if (p == 2) {
                  condval_96 = weight_ptr[5];
                } else {
                  condval_96 = weight_ptr[7];
                }
                condval_95 = condval_96;
              }
              condval_94 = condval_95;
            }
            float condval_97;
            if (p == 0) {
              condval_97 = weight_ptr[0];
            } else {
              float condval_98;
              if (p == 1) {
                condval_98 = weight_ptr[2];
              } else {
                float condval_99;
                if (p == 2) {
                  condval_99 = weight_ptr[4];
                } else {
                  condval_99 = weight_ptr[6];
                }
                condval_98 = condval_99;
              }
              condval_97 = condval_98;
            }
            values_ptr[1] = ((taken_ptr[4] + ((taken_ptr[6] - taken_ptr[4]) * condval_88)) + (((taken_ptr[5] + ((taken_ptr[7] - taken_ptr[5]) * condval_91)) - (taken_ptr[4] + ((taken_ptr[6] - taken_ptr[4]) * condval_94))) * condval_97));
          }
          values_ptr[2] = taken_ptr[8];
          if (linear != 0) {
            float condval_100;
            if (p == 0) {
              condval_100 = weight_ptr[1];
            } else {
              float condval_101;
              if (p == 1) {
                condval_101 = weight_ptr[3];
              } else {
                float condval_102;
                if (p == 2) {
                  condval_102 = weight_ptr[5];
                } else {
                  condval_102 = weight_ptr[7];
                }
                condval_101 = condval_102;
              }
              condval_100 = condval_101;
            }
            float condval_103;
            if (p == 0) {
              condval_103 = weight_ptr[1];
            } else {
              float condval_104;
              if (p == 1) {
                condval_104 = weight_ptr[3];
              } else {
                float condval_105;
                if (p == 2) {
                  condval_105 = weight_ptr[5];
                } else {
                  condval_105 = weight_ptr[7];
                }
                condval_104 = condval_105;
              }
              condval_103 = condval_104;
            }
            float condval_106;
            if (p == 0) {
              condval_106 = weight_ptr[1];
            } else {
              float condval_107;
              if (p == 1) {
                condval_107 = weight_ptr[3];
              } else {
                float condval_108;
                if (p == 2) {
                  condval_108 = weight_ptr[5];
                } else {
                  condval_108 = weight_ptr[7];
                }
                condval_107 = condval_108;
              }
              condval_106 = condval_107;
            }
            float condval_109;
            if (p == 0) {
              condval_109 = weight_ptr[0];
            } else {
              float condval_110;
              if (p == 1) {
                condval_110 = weight_ptr[2];
              } else {
                float condval_111;
                if (p == 2) {
                  condval_111 = weight_ptr[4];
                } else {
                  condval_111 = weight_ptr[6];
                }
                condval_110 = condval_111;
              }
              condval_109 = condval_110;
            }
            values_ptr[2] = ((taken_ptr[8] + ((taken_ptr[10] - taken_ptr[8]) * condval_100)) + (((taken_ptr[9] + ((taken_ptr[11] - taken_ptr[9]) * condval_103)) - (taken_ptr[8] + ((taken_ptr[10] - taken_ptr[8]) * condval_106))) * condval_109));
          }
        }
        int64_t cse_v9 = (((int64_t)p) * (int64_t)3);
        out_ptr[((((int64_t)p) * (int64_t)3) + at_ptr[0])] = ((uchar)((int)(values_ptr[0] + 0x1p-1f/*5.000000e-01*/)));
        out_ptr[(((((int64_t)p) * (int64_t)3) + at_ptr[0]) + (int64_t)1)] = ((uchar)((int)(values_ptr[1] + 0x1p-1f/*5.000000e-01*/)));
        out_ptr[(((((int64_t)p) * (int64_t)3) + at_ptr[0]) + (int64_t)2)] = ((uchar)((int)(values_ptr[2] + 0x1p-1f/*5.000000e-01*/)));
      }
    }
  }
}
